"""The tokens of a caption as the COCO evaluation has them, without Java.

The evaluation runs the Penn Treebank tokenizer of Stanford CoreNLP 3.4.1, in lower case, and drops punctuation. The
rules of this module were written by comparing with that program; on COCO's captions both agree (docs/metrics.md has
the counts and the known differences).

At each position the longest match of any rule becomes a token. A caption is first split at blanks, which few tokens
contain, and the tokens of each piece are cached, since pieces repeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

# The tokens that the COCO evaluation drops. Brackets are kept as -lrb-, since its list has -LRB- only; so is !!.
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

SPLIT = {  # words that are two tokens
    **{"cannot": "can not", "gonna": "gon na", "gotta": "got ta", "lemme": "lem me", "gimme": "gim me"},
    **{"wanna": "wan na", "'tis": "'t is", "'twas": "'t was"},
}
REPLACED = {
    **{"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"},
    **{"¢": "cents", "£": "#", "€": "$", "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"},
}
ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&nbsp;": " "}
# Quotation marks, dashes and ellipses are dropped later, so their kind does not matter.
CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("–—―…\u00a0\u200b", " "),
        **dict.fromkeys("’\u0092", "'"),
        **dict.fromkeys('"“”„«»‘‛\u0091', "`"),
        "\u00ad": "",
    }
)

# Words that keep their full stop, determined by giving 44,000 words to the original tokenizer.
_ABBREVIATIONS_ANY_CASE = (
    "adj|adm|adv|al|ala|alex|apr|ariz|assn|assoc|aug|ave|bhd|bldg|blvd|bros|calif|capt|cf|"
    "cie|cmdr|co|col|colo|conn|corp|cos|cpl|ct|dak|dec|dept|det|dr|drs|elec|ens|esq|est|"
    "etc|ext|feb|fla|fri|ft|ga|gen|gov|hon|inc|ind|intl|jan|jos|jr|jul|jun|kan|kans|ky|"
    "lt|ltd|maj|mar|md|messrs|mich|minn|mme|mo|mon|mont|mr|mrs|ms|mt|natl|neb|nev|nov|oct|"
    "okla|penn|pfc|ph|plc|prof|pvt|rd|rep|rev|rt|sen|sep|sept|seq|sfc|sgt|spc|sq|sr|st|"
    "ste|sys|tel|tenn|thu|thurs|tue|tues|univ|va|vs|vt|wed|wis|wm|wyo|ph[.]d"
)
# "Miss." and "MISS.", but not "miss."; "mfg." and "Mfg.", but not "MFG."
_ABBREVIATIONS_SOME_CASES = (
    "Ark|Az|Del|Ill|La|Mass|Miss|Ore|Pa|Tex|Wash|ARK|AZ|DEL|ILL|LA|MASS|MISS|ORE|PA|TEX|"
    "WASH|mfg|mtg|pte|pty|Mfg|Mtg|Pte|Pty"
)
_ABBREVIATIONS = f"(?i:{_ABBREVIATIONS_ANY_CASE})|{_ABBREVIATIONS_SOME_CASES}"
_ABBREVIATIONS_BEFORE_NUMBERS = "(?i:art|ca|fig|figs|no|nos|op|pp|prop)"

# Capitalized words that begin a sentence after a single letter and a full stop.
_SENTENCE_STARTS = (
    "A|A(?i:bout)|A(?i:ccording)|A(?i:fter)|A(?i:n)|A(?i:s)|A(?i:t)|B(?i:ut)|E(?i:arlier)|H(?i:e)|"
    "H(?i:er)|H(?i:ere)|H(?i:owever)|I(?i:f)|I(?i:n)|I(?i:t)|L(?i:ast)|M(?i:any)|M(?i:ore)|N(?i:ow)|"
    "O(?i:nce)|O(?i:ne)|O(?i:ther)|O(?i:ur)|S(?i:he)|S(?i:ince)|S(?i:o)|S(?i:ome)|S(?i:uch)|"
    "T(?i:hat)|T(?i:he)|T(?i:heir)|T(?i:hen)|T(?i:here)|T(?i:hese)|T(?i:hey)|T(?i:his)|W(?i:e)|"
    "W(?i:hat)|W(?i:hen)|W(?i:hile)|Y(?i:et)|Y(?i:ou)"
)

_L, _A = r"[^\W\d_]", r"[^\W_]"  # a letter; a letter or digit
_L = rf"(?:{_L}[\u0300-\u036f]*)"  # with its accents
_WORD = rf"{_L}(?:{_L}|\d)*(?:[.!?]{_L}(?:{_L}|\d)*)*"
_HYPHENATED = rf"{_A}(?:{_A}|[.,])*(?:-{_A}+)+"
_NUMBER = r"[-+]?(?:\d*(?:[.:,]\d+)+|\d+)"
_AUXILIARY = r"(?i:'(?:[msd]|re|ve|ll))(?![^\W\d_])"
_HOST = rf"(?:{_L}[\w-]*\.)+"
_SIDE = r"[A-Za-z0-9]+(?:-[A-Za-z]+)*"  # left or right of a slash
_END = r"(?![^\W_])"  # no letter or digit follows

# The longest match wins, and of equally long ones the first rule. If a rule has a group, the token is the group; the
# rest of the match only counts for its length.
RULES = [
    re.compile(rule)
    for rule in (
        # contractions: the word before n't, n't, 's and the like; words that contain an apostrophe
        r"([A-Za-z]*(?![nN])[A-Za-z])[nN]'[tT]",
        r"[nN]'[tT][^\W\d]*",
        _AUXILIARY,
        rf"({_WORD}|{_A}+){_AUXILIARY}",
        rf"(?i:'(?:cause|tisn|tis|twas|till?|em)){_END}|'[nN](?:'|$)",
        r"(?i:dunkin'|somethin'|ol')",
        rf"(?i:c'mon|c'est|ma'am|e'er|ne'er|o'er){_END}",
        rf"(?:{_A}+-)*[dDoOlL]'{_A}{{2,}}(?:-{_A}+)*",
        rf"{_L}+[aeiouyAEIOUY]'[aeiouA-Z]{_L}*|[AHNn]'{_L}{{2,}}",
        r"[lLdDjJ]'|[yY]'(?=[^\W\d_])",
        rf"(?i:gonna|gotta|lemme|gimme|wanna|cannot){_END}",
        # words and numbers; a full stop before , ; : belongs to the word before it
        rf"((?:{_WORD}|{_A}+|{_HYPHENATED})\.)[,;:]",
        _WORD,
        rf"{_A}+(?:_+{_A}+)*",
        _HYPHENATED,
        rf"{_SIDE}(?:/{_SIDE}){{1,2}}",
        r"[A-Z]+(?:[+&][A-Z]+)+",
        r"[cC]\+\+|[cCfF]#",
        _NUMBER,
        r"(?:\d{1,4}[- ])?\d{1,4}/\d{1,4}",
        r"(?:\(\d{3}\)|\d{3})[ -]?\d{3}-\d{4}",
        rf"'\d\d(?:[sS]{_END}|$)",
        # abbreviations
        rf"(?:{_ABBREVIATIONS})\.",
        r"[A-Za-z](?:\.[A-Za-z])*\.",
        # addresses
        r"https?://\S*[\w/]",
        rf"(?:www\.{_HOST}[a-zA-Z]{{2,4}}|{_HOST}(?:com|net|org|edu){_END})(?:/\S*\w)?",
        r"[A-Za-z0-9][\w.-]*@\w+(?:[.-]\w+)*",
        r"[@#][A-Za-z_]+",
        r"</?[A-Za-z!][^>\s]*>",
        # the rest
        r"[A-Z]*\$",
        r"\.{3,5}|-+|[!?]+|_+|\*+|@+|\#+|<+|>+|''|``",
        rf"[:;=][-'o]?[()DPdp]{_END}",
        r"\^_\^",
        r"\S",
    )
]
BEFORE_NUMBERS = re.compile(rf"(?:{_ABBREVIATIONS_BEFORE_NUMBERS})\.(?=\d|$)")
# Pieces between blanks; two kinds of numbers have a blank inside.
PIECE = re.compile(r"(?:\d{1,4} \d{1,4}/\d{1,4}|(?:\(\d{3}\)|\d{3}) \d{3}-\d{4}|\S)+")
SENTENCE_START = re.compile(_SENTENCE_STARTS)


def tokenize(caption: str) -> str:
    """The tokens of a caption in lower case, without punctuation, joined by single blanks.

    >>> tokenize("A man's dog (a T-shirt on it) doesn't cross 5th Ave., at 4:15pm!")
    "a man 's dog -lrb- a t-shirt on it -rrb- does n't cross 5th ave. at 4:15 pm"
    """
    return tokenize_all([caption])[0]


def tokenize_all(captions: Sequence[str]) -> list[str]:
    """The tokens of captions that are evaluated together, in this order.

    The original tokenizer reads them as one text. If a caption ends in a single letter and a full stop, the first word
    of the next caption decides whether the full stop is part of the letter's token or ends a sentence.

    >>> tokenize_all(["The letter K.", "A cat.", "The letter K.", "Cats."])
    ['the letter k', 'a cat', 'the letter k.', 'cats']
    """
    pieces = [_pieces(caption) for caption in captions]
    following = [*(of_next[0] if of_next else "" for of_next in pieces[1:]), ""]
    return [" ".join(_tokenize(*pair)) for pair in zip(pieces, following, strict=False)]


def _pieces(caption: str) -> list[str]:
    """A caption split at blanks, with HTML entities and typographic characters replaced."""
    if not caption.isascii() or '"' in caption or "&" in caption:
        for entity, character in ENTITIES.items():
            caption = caption.replace(entity, character)
        caption = caption.translate(CHARACTERS)
    return PIECE.findall(caption) if "/" in caption or "-" in caption else caption.split()


def _tokenize(pieces: list[str], following: str) -> Iterator[str]:
    for piece, after in zip(pieces, [*pieces[1:], following], strict=False):
        ends = piece.endswith(".")
        yield from _tokens(piece, ends and after[:1].isdigit(), ends and SENTENCE_START.fullmatch(after) is not None)


@lru_cache(maxsize=1 << 17)
def _tokens(piece: str, before_number: bool, before_sentence: bool) -> tuple[str, ...]:
    """The tokens of a piece, given whether a number or the beginning of a sentence follows the piece."""
    tokens = []
    at = 0
    while at < len(piece):
        match = max((found for rule in RULES if (found := rule.match(piece, at))), key=re.Match.end)
        end = match.end(match.lastindex or 0)
        number = BEFORE_NUMBERS.match(piece, at)
        if number and number.end() > end - 1 and (number.end() < len(piece) or before_number):
            end = number.end()
        if before_sentence and end == len(piece) and end - at == 2 and piece[at].isalpha():
            end = at + 1  # "a. The": the full stop ends a sentence
        tokens += _normalized(piece[at:end])
        at = end
        while at < len(piece) and piece[at].isspace():
            at += 1
    return tuple(token for token in tokens if token not in PUNCTUATION)


def _normalized(token: str) -> list[str]:
    """The output tokens of a matched token: in lower case, some split in two, brackets by name."""
    token = token.lower()
    if token in SPLIT:
        return SPLIT[token].split()
    if token in REPLACED:
        return [REPLACED[token]]
    if token[0] == "-" and not token.strip("-"):
        return ["--" if len(token) > 1 else "-"]
    if token[0] == "." and not token.strip(".") and len(token) > 2:
        return ["..."]
    if len(token) == 1 and (ord(token) > 0xFFFF or not token.isprintable()):
        return []  # emoji and the like, which the original drops
    if token[0] in ":;=(":  # :) and (555) 123-4567
        token = "".join(REPLACED.get(character, character) for character in token)
    return [token.replace(" ", "\u00a0")]
