"""One self-contained page: pictures, what each run says about them, and where each word looked, when it is pointed at.

A word holds its shade, a picture of one pixel a region (some 100 bytes), which the browser stretches smoothly over the
card's picture. There is no script: pointing and tapping are CSS.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from string import Template

from PIL import Image

from prproduct.captioning.describing import Description
from prproduct.captioning.use.attention import shades
from prproduct.captioning.use.own_pictures import Seen
from prproduct.captioning.use.speakers import Speaker

_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Captions</title>
<style>
  :root { color-scheme: light dark; --line: #8885; --dim: light-dark(#555, #aaa); }
  * { box-sizing: border-box; }
  body { margin: 0 auto; padding: 1rem; max-width: 84rem; font: 1rem/1.45 system-ui, sans-serif; }
  h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
  header p { margin: 0 0 1rem; }
  header p, footer { color: var(--dim); }
  footer h1 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
  ul { margin: 0; padding-left: 1.2rem; }
  li, h2, .label { overflow-wrap: anywhere; }
  main { display: grid; gap: 1rem; align-items: start;
         grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr)); }
  article { position: relative; overflow: hidden; border: 1px solid var(--line); border-radius: .5rem; }
  .frame { background: #8882; }
  .picture, .look { display: block; margin: 0 auto;
                    aspect-ratio: var(--ratio); width: min(100%, 18rem * var(--ratio)); }
  .look { position: absolute; inset: 0 0 auto; visibility: hidden; pointer-events: none; }
  .word:hover .look, .word:focus .look { visibility: visible; }
  .word { cursor: pointer; padding: .15em .1em; border-radius: .2em; }
  .word:hover, .word:focus { background: #f7c948; color: #000; outline: none; }
  h2 { font-size: .85rem; font-weight: normal; color: var(--dim); margin: 0; padding: .5rem .75rem 0; }
  dl { margin: 0; padding: .25rem .75rem .75rem; }
  dt { font-size: .8rem; color: var(--dim); margin-top: .4rem; }
  dd { margin: 0; font-size: 1.05rem; }
</style>
<header>
<h1>$title</h1>
<p>Point at a word, or tap it, to see where the captioner looked: what stays clear.</p>
</header>
<main>
$cards
</main>
<footer>
<h1>Captioners</h1>
<ul>
$runs
</ul>
$unreadable
</footer>
</html>
""")


def page(cards: Sequence[str], speakers: Sequence[Speaker], unreadable: Sequence[tuple[str, str]]) -> str:
    """The page of all cards; `unreadable` are pictures that could not be read, and why."""
    runs = [f"<li>{escape(speaker.label)}: {escape(speaker.about)}</li>" for speaker in speakers]
    rows = "\n".join(f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in unreadable)
    return _PAGE.substitute(
        title=f"Captions of {len(cards)} picture{'s' * (len(cards) != 1)}",
        cards="\n".join(cards),
        runs="\n".join(runs),
        unreadable=f"<h1>Could not be read</h1>\n<ul>\n{rows}\n</ul>" if unreadable else "",
    )


def card(place: str, seen: Seen, labels: Sequence[str]) -> str:
    """A picture, its name (pointed at, the whole place), and each label's caption of it."""
    name = place.replace("\\", "/").rsplit("/", 1)[-1]
    width, height = seen.image.size
    said = [
        f'<dt class="label">{escape(label)}</dt>\n<dd>{_caption(about)}</dd>'
        for label, about in zip(labels, seen.said, strict=True)
    ]
    source = _data_url(seen.image.convert("RGB"), "JPEG", quality=80)
    return (
        f'<article style="--ratio: {width / height:.4f}">\n'
        f'<div class="frame"><img class="picture" src="{source}" alt="{escape(name)}"></div>\n'
        f'<h2 title="{escape(place)}">{escape(name)}</h2>\n<dl>\n' + "\n".join(said) + "\n</dl>\n</article>"
    )


def _caption(about: Description) -> str:
    look = '<img class="look" alt="" src="{}">'
    words = [
        f'<span class="word" tabindex="0">{escape(word)}{look.format(_data_url(shade, "PNG"))}</span>'
        for word, shade in zip(about.words, shades(about.attention), strict=True)
    ]
    return " ".join(words) or "(no words)"


def _data_url(image: Image.Image, form: str, **options: int) -> str:
    content = io.BytesIO()
    image.save(content, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(content.getvalue()).decode()}"
