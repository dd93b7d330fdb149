"""Finds the functions of a C++ or CUDA source: name, first and last line, number of parameters.

The scanner knows brackets, strings and comments, not the language: a function is a brace behind a parameter
list, directly inside a file, a namespace or a type; a lambda is a brace behind a capture list.
"""
import dataclasses
import re

TOKEN = re.compile(r"""
    (?P<skip>   \s+ | //(?:\\\n|[^\n])* | /\*.*?\*/ | ^[ \t]*\#(?:\\\n|//[^\n]*|/\*.*?\*/|[^\n])* )
  | (?P<raw>    (?:u8|[uUL])?R"(?P<delimiter>[^\s()\\]*)\(.*?\)(?P=delimiter)" )
  | (?P<string> (?:u8|[uUL])?"(?:\\.|[^"\\\n])*" | (?<![0-9a-fA-F])(?:u8|[uUL])?'(?:\\.|[^'\\\n])*' )
  | (?P<word>   [0-9](?:'?[\w.])* | \w+ | ->|::|&&|\|\||<=>|<<=?|[<>=!+\-*/%&|^]=|[^\w\s] )
""", re.X | re.S | re.M)
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
CONTROL = {"if", "for", "while", "switch", "do", "else", "try", "catch", "case", "default"}
# Words in front of parentheses that are not a parameter list.
NOT_NAMES = {"decltype", "requires", "alignas", "noexcept", "explicit", "__attribute__",
             "__launch_bounds__", "__align__", "HWY_ALIGN", "asm"}


@dataclasses.dataclass
class Function:
    name: str
    first: int
    last: int
    parameters: int


@dataclasses.dataclass
class Token:
    text: str  # a word, or "()", "[]" or "{}" for a closed bracket with its content in `inside`
    line: int
    inside: list = None


@dataclasses.dataclass
class Frame:
    bracket: str
    kind: str  # of a brace: scope (namespace, type), body (function, lambda), block or value
    head: list
    whole: list  # all tokens inside a parenthesis
    function: Function = None


def without_templates(tokens):
    """Drops template <...> and what stands in it."""
    kept, at = [], 0
    while at < len(tokens):
        if tokens[at].text == "template":
            depth, at = 0, at + 1
            while at < len(tokens):
                depth += {"<": 1, ">": -1}.get(tokens[at].text, 0)
                at += 1
                if depth == 0:
                    break
        else:
            kept.append(tokens[at])
            at += 1
    return kept


def count_parameters(tokens):
    if not tokens or [t.text for t in tokens] == ["void"]:
        return 0
    depth, count = 0, 1
    for token in tokens:
        count += token.text == "," and depth == 0
        depth += {"<": 1, ">": -1}.get(token.text, 0)
    return count


def lambda_of(head):
    """The lambda whose body follows `head`, or None."""
    for at in range(len(head) - 1, -1, -1):
        token = head[at]
        if token.text == "[]":
            follows = head[at + 1:]
            parameters = next((t for t in follows if t.text == "()"), None)
            legal = not follows or follows[0].text in {"()", "<", "mutable", "->", "noexcept", "HWY_ATTR"}
            is_index = at > 0 and (head[at - 1].text in {")", "]", "()", "[]"} or
                                   re.match(r"\w", head[at - 1].text) and head[at - 1].text != "return")
            if legal and not is_index:
                return Function("lambda", token.line, 0, count_parameters(parameters.inside) if parameters else 0)
        if token.text in {",", ";", "=", "return"}:
            return None
    return None


def name_before(tokens):
    """The qualified name at the end of `tokens`, or an empty text."""
    words = [t.text for t in tokens]
    if words[-1:] == [">"] and "<" in words:  # a specialisation
        words = words[:len(words) - 1 - words[::-1].index("<")]
    start = words.index("operator") if "operator" in words else len(words) - 1
    if start < 0 or not re.fullmatch(r"~?\w+", words[start]):
        return ""
    while start > 0 and words[start - 1] in {"::", "~"} or start > 1 and words[start - 1] == "::":
        start -= 1 if words[start - 1] == "~" else 2
    return "".join(words[max(start, 0):])


def function_of(head):
    """The function whose body follows `head`, or None."""
    tokens = without_templates(head)
    for at, token in enumerate(tokens):
        before = tokens[at - 1].text if at else ""
        if token.text == "=" and before != "operator":
            return None
        if token.text != "()" or before in NOT_NAMES:
            continue
        if before == "operator" and at + 1 < len(tokens) and tokens[at + 1].text == "()":
            continue
        name = name_before(tokens[:at])
        if not name:
            return None
        after = [t.text for t in tokens[at + 1:]]
        if ":" in after and after[-1] not in {"()", "{}"}:
            return None  # the brace initialises a member
        return Function(name, head[0].line, 0, count_parameters(token.inside))
    return None


def open_brace(frame):
    """The frame of a brace that opens in `frame`."""
    head = frame.head
    words = [t.text for t in without_templates(head)]
    kind, function = "value", lambda_of(head)
    if function:
        kind = "body"
    elif frame.bracket != "{":
        kind = "value"
    elif frame.kind == "scope" and (function := function_of(head)):
        kind = "body"
    elif "namespace" in words or words[:1] == ["extern"]:
        kind = "scope"
    elif {"class", "struct", "union", "enum"} & set(words[:2]) and "=" not in words and "()" not in words[2:]:
        kind = "scope"
    elif not words or words[0] in CONTROL or words[-1] in {"()", "else", "do", ":"}:
        kind = "block"
    return Frame("{", kind, [], [], function)


def functions(text):
    """All functions and lambdas of a source, in the order in which they end."""
    stack, found, line, end = [Frame("{", "scope", [], [])], [], 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", end, match.start())
        end = match.start()
        if match["skip"]:
            continue
        frame, word = stack[-1], '""' if match["word"] is None else match["word"]
        if word in OPEN:
            stack.append(open_brace(frame) if word == "{" else Frame(word, "value", [], []))
            if stack[-1].function:
                stack[-1].function.first = min(stack[-1].function.first, line)
        elif word in CLOSE:
            closed = stack.pop()
            if not stack or OPEN[closed.bracket] != word:
                raise ValueError(f"line {line}: '{word}' closes nothing")
            if closed.function:
                closed.function.last = line
                found.append(closed.function)
            parent = stack[-1]
            ends = closed.kind in {"block", "scope"} or (
                closed.kind == "body" and closed.function.name != "lambda")
            if ends:
                parent.head = []
            else:
                parent.head.append(Token(closed.bracket + word, line, closed.whole))
                parent.whole.append(parent.head[-1])
        elif word == ";" or word == ":" and frame.head and frame.head[-1].text in {
                "public", "private", "protected"}:
            frame.head = []
        else:
            frame.head.append(Token(word, line))
            frame.whole.append(frame.head[-1])
    if len(stack) != 1:
        raise ValueError("a bracket is never closed")
    return found


# Each source with the functions that are in it: name, lines, parameters.
EXAMPLES = [
    ("int f(int a, std::map<int, int> b = {}) {\n  return a;\n}\n", [("f", 3, 2)]),
    ("// void no() {\nconst char* s = \"{\"; char c = '{'; long n = 1'000;\nvoid g() {}", [("g", 1, 0)]),
    ("#define M(x) { \\\n  {\nauto r = R\"x({)x\";\nstruct S {\n  S(int a)\n      : a_{a}, b_(a) {}\n"
     " private:\n  int a_ = 1, b_;\n};", [("S", 2, 1)]),
    ("template <class T, int N = f(3)>\n__global__ void __launch_bounds__(128) k(T* x, int n) {\n"
     "  if (n) { x[0] = {}; }\n}", [("k", 4, 2)]),
    ("namespace a {\nvoid h() {\n  const auto f = [&](int i, int j) { return i + j; };\n  for (;;) {\n  }\n}\n}",
     [("lambda", 1, 2), ("h", 5, 0)]),
    ("bool A::operator==(const A& o) const { return true; }\nint B::operator()(int x) { return x; }",
     [("A::operator==", 1, 1), ("B::operator()", 1, 1)]),
    ("const Table t = {{1, f(2)}, {3, 4}};\nenum class E : int { kA, kB };\nvoid z(void (*f)(int, int),\n"
     "       A n = B<int, 2>(), int m = 0) {}",
     [("z", 2, 3)]),
    ("template <>\nvoid C::f<int>(int) {}", [("C::f", 2, 1)]),
    ("A::~A() noexcept(false) { run([this] { stop(); }, x[0]); }", [("lambda", 1, 0), ("A::~A", 1, 0)]),
]


def self_check():
    """Raises an error if the scanner misreads one of the examples."""
    for source, expected in EXAMPLES:
        seen = [(f.name, f.last - f.first + 1, f.parameters) for f in functions(source)]
        if seen != expected:
            raise AssertionError(f"{source!r}: {seen}, not {expected}")
