"""Which words keep their full stop, as patterns: found by asking the original tokenizer about 44,000 words."""

from __future__ import annotations

IN_ANY_CASE = (
    "adj|adm|adv|al|ala|alex|apr|ariz|assn|assoc|aug|ave|bhd|bldg|blvd|bros|calif|capt|cf|"
    "cie|cmdr|co|col|colo|conn|corp|cos|cpl|ct|dak|dec|dept|det|dr|drs|elec|ens|esq|est|"
    "etc|ext|feb|fla|fri|ft|ga|gen|gov|hon|inc|ind|intl|jan|jos|jr|jul|jun|kan|kans|ky|"
    "lt|ltd|maj|mar|md|messrs|mich|minn|mme|mo|mon|mont|mr|mrs|ms|mt|natl|neb|nev|nov|oct|"
    "okla|penn|pfc|ph|plc|prof|pvt|rd|rep|rev|rt|sen|sep|sept|seq|sfc|sgt|spc|sq|sr|st|"
    "ste|sys|tel|tenn|thu|thurs|tue|tues|univ|va|vs|vt|wed|wis|wm|wyo|ph[.]d"
)
# "Miss." and "MISS.", but not "miss."; "mfg." and "Mfg.", but not "MFG."
IN_SOME_CASES = (
    "Ark|Az|Del|Ill|La|Mass|Miss|Ore|Pa|Tex|Wash|ARK|AZ|DEL|ILL|LA|MASS|MISS|ORE|PA|TEX|"
    "WASH|mfg|mtg|pte|pty|Mfg|Mtg|Pte|Pty"
)
ALWAYS = f"(?i:{IN_ANY_CASE})|{IN_SOME_CASES}"
BEFORE_NUMBERS = "(?i:art|ca|fig|figs|no|nos|op|pp|prop)"

# After a single letter and a full stop, these begin a sentence when they are written with a capital.
SENTENCE_STARTS = (
    "A|A(?i:bout)|A(?i:ccording)|A(?i:fter)|A(?i:n)|A(?i:s)|A(?i:t)|B(?i:ut)|E(?i:arlier)|H(?i:e)|"
    "H(?i:er)|H(?i:ere)|H(?i:owever)|I(?i:f)|I(?i:n)|I(?i:t)|L(?i:ast)|M(?i:any)|M(?i:ore)|N(?i:ow)|"
    "O(?i:nce)|O(?i:ne)|O(?i:ther)|O(?i:ur)|S(?i:he)|S(?i:ince)|S(?i:o)|S(?i:ome)|S(?i:uch)|"
    "T(?i:hat)|T(?i:he)|T(?i:heir)|T(?i:hen)|T(?i:here)|T(?i:hese)|T(?i:hey)|T(?i:his)|W(?i:e)|"
    "W(?i:hat)|W(?i:hen)|W(?i:hile)|Y(?i:et)|Y(?i:ou)"
)
