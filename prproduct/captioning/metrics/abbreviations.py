"""Which words keep their full stop, as patterns: found by asking the original tokenizer about 44,000 words."""

from __future__ import annotations

IN_ANY_CASE = """
    adj adm adv al ala alex apr ariz assn assoc aug ave bhd bldg blvd bros calif capt cf cie cmdr co col colo
    conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc ext feb fla fri ft ga gen gov hon inc ind
    intl jan jos jr jul jun kan kans ky lt ltd maj mar md messrs mich minn mme mo mon mont mr mrs ms mt natl neb
    nev nov oct okla penn pfc ph plc prof pvt rd rep rev rt sen sep sept seq sfc sgt spc sq sr st ste sys tel
    tenn thu thurs tue tues univ va vs vt wed wis wm wyo
""".split()
CAPITALISED = """
    ark az del ill la mass miss ore pa tex wash
""".split()  # "Miss." and "MISS.", but not "miss."
NOT_IN_CAPITALS = """
    mfg mtg pte pty
""".split()

ALWAYS = "|".join(
    [
        f"(?i:{'|'.join([*IN_ANY_CASE, 'ph[.]d'])})",
        *(word.title() for word in CAPITALISED),
        *(word.upper() for word in CAPITALISED),
        *NOT_IN_CAPITALS,
        *(word.title() for word in NOT_IN_CAPITALS),
    ]
)
BEFORE_NUMBERS = "(?i:art|ca|fig|figs|no|nos|op|pp|prop)"

# After a single letter and a full stop, these begin a sentence when they are written with a capital.
SENTENCE_STARTS = "|".join(
    f"{word[0].upper()}(?i:{word[1:]})"
    for word in """
    a about according after an as at but earlier he her here however if in it last many more now once one other
    our she since so some such that the their then there these they this we what when while yet you
    """.split()
)
