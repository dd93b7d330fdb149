"""Short prompts for the caption grammar of clips.py, and the full caption each should become."""
import re
import string
import clips

KINDS = ("size", "colour", "shape", "motion", "ground")
VALUES = dict(size=list(clips.SIZES), colour=list(clips.COLOURS), shape=clips.SHAPES, motion=clips.MOTIONS,
              ground=list(clips.GROUNDS))

# Other words for the grammar's own.
SYNONYMS = {
    "small": ["little", "tiny", "mini"], "big": ["large", "huge", "giant"],
    "red": ["crimson", "scarlet"], "green": ["emerald"], "blue": ["azure"], "yellow": ["golden"],
    "purple": ["violet"], "orange": ["tangerine"], "white": ["snow-white"], "cyan": ["turquoise", "aqua"],
    "ball": ["circle", "sphere", "disc", "dot"], "square": ["box", "block"], "triangle": ["pyramid"],
    "star": ["five-pointed star"], "ring": ["hoop", "donut"],
    "moving left": ["going left", "moves left", "moving to the left", "drifting left", "left", "leftwards"],
    "moving right": ["going right", "moves right", "moving to the right", "drifting right", "right", "rightwards"],
    "moving up": ["going up", "moves up", "rising", "moving upwards", "flying up", "up"],
    "moving down": ["going down", "moves down", "falling", "moving downwards", "sinking", "down"],
    "standing still": ["stands still", "still", "static", "not moving", "motionless"],
    "circling": ["circles", "going in circles", "moving in a circle", "orbiting", "going round"],
    "growing": ["grows", "getting bigger", "getting larger", "expanding"],
    "shrinking": ["shrinks", "getting smaller", "contracting"],
    "gray": ["grey"], "navy": ["dark blue"], "brown": ["chocolate"], "black": ["pitch-black"],
}
NOISE = ("beautiful nice cinematic realistic please cute shiny slow fast dog cat car house tree sofa sea city night "
         "person running happy robot sky quickly detailed high quality smooth old new wooden glass toy two three "
         "flower bird dancing street forest the and with very in of at").split()
NEW_NOISE = ("lovely gorgeous horse boat guitar mountain swimming kitchen elephant vintage dramatic softly plastic "
             "metal seven river castle jumping bridge lamp some from near quite").split()  # for figures only

ONE = {k: "|".join(map(re.escape, v)) for k, v in VALUES.items()}
SENTENCE = re.compile(rf"(?:(?P<article>an?) )?(?:(?P<size>{ONE['size']}) )?(?:(?P<colour>{ONE['colour']}) )?"
                      rf"(?:(?P<shape>{ONE['shape']})|shape)(?:(?: |, | is )(?P<motion>{ONE['motion']}))?"
                      rf"(?:(?: on a | on |, on a )(?P<ground>{ONE['ground']}) background)?\.?")


def parse(text):
    """The attributes that a sentence of the grammar says, or None when it is none."""
    m = SENTENCE.fullmatch(text)
    if not m or (m["article"] and m["article"] != ("an" if text.split()[1][0] in "aeiou" else "a")):
        return None
    return {k: m[k] for k in KINDS if m[k]}


def full(said):
    return said is not None and len(said) == len(KINDS)


def sentence(of):
    return f"a {of['size']} {of['colour']} {of['shape']} {of['motion']} on a {of['ground']} background"


def target(prompt, of):
    """What the prompt should become: itself when it says all, else the plain full sentence."""
    plain = prompt.strip().lower()
    return plain if full(parse(plain)) else sentence(of)


def drawn(rng):
    return {k: rng.choice(v) for k, v in VALUES.items()}


def combo(of):
    return of["colour"], of["shape"], of["motion"], of["ground"]


# A prompt in the making is a list of pieces: an attribute's kind, or words as they stand.
def noun_phrase(said, rng):
    out = [k for k in ("size", "colour") if k in said]
    out.append("shape" if "shape" in said else rng.choice(["shape", "thing", "object", "something"]))
    if "shape" not in said:
        out[-1] = [out[-1]]
    r = rng.random()
    if r < 0.45:
        out.insert(0, ["ARTICLE"])
    elif r < 0.55:
        out.insert(0, [rng.choice(["the", "one", "some"])])
    return spaced(out)


def spaced(parts, by=" "):
    out = []
    for p in parts:
        out += [[by], p] if out else [p]
    return out


def on_ground(rng):
    a, b = rng.choice([(" on a ", " background"), (" on ", ""), (" on ", " background"), (" against a ", " backdrop"),
                       (" over ", ""), (" with a ", " background"), (", ", " background"), (" in front of ", ""),
                       (", background ", "")])
    return [[a], "ground", [b]]


def in_words(said, rng):
    out = noun_phrase(said, rng)
    tail = []
    if "motion" in said:
        tail.append([[rng.choice([" ", " ", ", ", " is ", " that is ", " which is ", " - "])], "motion"])
    if "ground" in said:
        tail.append(on_ground(rng))
    if len(tail) == 2 and rng.random() < 0.15:
        tail.reverse()
    for t in tail:
        out += t
    return out


def listed(said, rng):
    order = list(said)
    rng.shuffle(order)
    return spaced(order, rng.choice([" ", " ", ", ", ", ", "; ", " and ", " / ", ","]))


def turned(said, rng):
    """Ground or motion first, the colour after the shape, and the like."""
    out, rest = [], dict(said)
    if "ground" in rest and rng.random() < 0.7:
        rest.pop("ground")
        a, b = rng.choice([("on a ", " background, "), ("", " background: "), ("on ", ", "), ("", " background, "),
                           ("background ", ", ")])
        out = [[a], "ground", [b]]
    if "motion" in rest and rng.random() < 0.6:
        rest.pop("motion")
        out += ["motion", [rng.choice([": ", ", ", " ", " is "])]]
    if "shape" in rest and "colour" in rest and rng.random() < 0.5:
        rest.pop("colour")
        out += noun_phrase({k: v for k, v in rest.items() if k in ("size", "shape")}, rng)
        out += [[rng.choice([" in ", ", ", " that is ", " coloured ", " of colour "])], "colour"]
        rest = {k: v for k, v in rest.items() if k in ("motion", "ground")}
        for k in rest:
            out += [[", "], k] if k == "motion" else on_ground(rng)
        return out
    return out + in_words(rest, rng)


def keyed(said, rng):
    order, eq, by = list(said), rng.choice([": ", "=", " ", " = "]), rng.choice([", ", " ", "; "])
    rng.shuffle(order)
    names = dict(size="size", colour=rng.choice(["colour", "color"]), shape="shape", motion="motion",
                 ground="background")
    out = []
    for k in order:
        out += ([[by]] if out else []) + [[names[k] + eq], k]
    return out


def wrapped(said, rng):
    a, b = rng.choice([("a video of ", ""), ("a clip of ", ""), ("draw ", ""), ("show me ", ""), ("please make ", ""),
                       ("", ", please"), ("i want ", ""), ("animation: ", ""), ("", " video"), ("make it ", "")])
    return [[a]] + (in_words(said, rng) if rng.random() < 0.7 else listed(said, rng)) + [[b]]


def captioned(of, rng):
    """A caption of the video model's own training, as pieces, and what it says."""
    text = clips.caption(combo(of), of["size"], rng)
    said = parse(text)
    if said is None:
        raise ValueError(f"clips.caption drew '{text}', which is no sentence of the grammar")
    return pieces_of(text, said), said


def pieces_of(text, said):
    out, at = [], 0
    for k in (k for k in KINDS if k in said):  # the grammar's order
        i = re.compile(rf"\b{re.escape(said[k])}\b").search(text, at).start()
        out += [[text[at:i]], k]
        at = i + len(said[k])
    return out + [[text[at:]]]


def every_caption(of, rng):
    """All five said, as the grammar words it."""
    while True:
        text = clips.caption(combo(of), of["size"], rng)
        said = parse(text)
        if full(said):
            return pieces_of(text, said)


def blemish(text, rng, noise):
    """Other case, odd spaces and stops, strange words; at most one typo. -> text, whether a word was misspelt"""
    typo = False
    if rng.random() < 0.12:
        words = text.split(" ")
        for _ in range(rng.integers(1, 4)):
            odd = rng.choice(noise) if rng.random() < 0.7 else "".join(
                rng.choice(list(string.ascii_lowercase), rng.integers(2, 8)))
            words.insert(rng.choice([0, len(words)]), odd)
        text = " ".join(words)
    if rng.random() < 0.08:
        spots = [m.span() for m in re.finditer(r"[a-z]{5,}", text)]
        if spots:
            lo, hi = spots[rng.integers(len(spots))]
            i = int(rng.integers(lo + 1, hi - 1))
            cut = rng.choice(["drop", "twice", "swap"])
            text = text[:i] + dict(drop="", twice=text[i] * 2, swap=text[i + 1] + text[i])[cut] + \
                text[i + (2 if cut == "swap" else 1):]
            typo = True
    r = rng.random()
    if r < 0.1:
        text = text[:1].upper() + text[1:]
    elif r < 0.16:
        text = text.title()
    elif r < 0.29:
        text = text.upper()
    if rng.random() < 0.08:
        text += rng.choice([".", "!", "...", " .", "?"])
    if rng.random() < 0.05:
        text = rng.choice([" ", "  ", "\n"]) + text if rng.random() < 0.5 else text + rng.choice([" ", "\n"])
    return text, typo


class Prompt:
    """text; said: the attributes it gives; wording: the text with attributes by name; want: one right caption."""

    def __init__(self, rng, noise=NOISE, clean=False):
        of = drawn(rng)
        form = rng.choice(["words", "listed", "turned", "keyed", "wrapped", "caption", "full", "strange"],
                          p=[0.26, 0.24, 0.14, 0.04, 0.09, 0.09, 0.11, 0.03])
        if form == "caption":
            pieces, self.said = captioned(of, rng)
        elif form == "full":
            pieces, self.said = every_caption(of, rng), dict(of)
        elif form == "strange":
            pieces, self.said = [[" ".join(rng.choice(noise, rng.integers(0, 9)))]], {}
        else:
            count = rng.choice(6, p=[0.02, 0.22, 0.28, 0.22, 0.16, 0.10])
            kinds = set(rng.choice(KINDS, count, replace=False))
            self.said = {k: of[k] for k in KINDS if k in kinds}
            make = dict(words=in_words, listed=listed, turned=turned, keyed=keyed, wrapped=wrapped)[form]
            pieces = make(self.said, rng)
        self.wording = "".join(p.upper() if isinstance(p, str) else p[0] for p in pieces)
        other = 0.0 if form in ("caption", "full") else 0.15
        text = "".join((self.word(of[p], rng, other) if isinstance(p, str) else p[0]) for p in pieces)
        text = re.sub(r"ARTICLE (.)", lambda m: ("an " if m[1] in "aeiou" else "a ") + m[1], text)
        self.of, self.typo = of, False
        if not clean:
            text, self.typo = blemish(text, rng, noise)
        self.text, self.want = text, target(text, of)

    @staticmethod
    def word(value, rng, other):
        return rng.choice(SYNONYMS[value]) if rng.random() < other else value

    def held_wording(self):
        """Never trained on: a tenth of the wordings."""
        return clips.fnv1a(self.wording) % 10 == 0

    def held_combination(self):
        """Never trained on: a caption of one of the combinations that the video model is not trained on."""
        return clips.held_out(*combo(self.of))

    def kept(self, caption):
        """Whether every given attribute is in the caption; a full one has to come back as it is."""
        got = parse(caption)
        whole = full(parse(self.text.strip().lower()))
        return caption == self.want if whole else got is not None and all(got.get(k) == v for k, v in self.said.items())


def prompts(rng, count, want=lambda p: True, **how):
    out = []
    while len(out) < count:
        p = Prompt(rng, **how)
        if want(p):
            out.append(p)
    return out
