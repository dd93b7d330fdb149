"""Writes html_entities.inc: the named character references of Python's html.entities.

    python3 io/text/make_html_entities.py > io/text/html_entities.inc

The first list is HTML5's. The second holds the spellings in capitals that ftfy reads too: those of a
lower-case name with a semicolon, unless HTML5 already sees something in the capitals.
"""
import html
import html.entities


def row(name, text):
    points = ", ".join(f"0x{ord(char):x}" for char in text)
    return f'    {{"{name}", {{{points}}}}},'


html5 = dict(html.entities.html5)
capitals = {}
for name, text in html5.items():
    if name.endswith(";") and name == name.lower() and html.unescape("&" + name.upper()) == "&" + name.upper():
        capitals[name.upper()] = text.upper()

print("// Made by make_html_entities.py; do not edit. Sorted by the bytes of the name.")
for title, table in (("kEntities", html5), ("kCapitals", capitals)):
    assert max(map(len, table.values())) <= 3
    print(f"constexpr HtmlEntity {title}[] = {{")
    for name, text in sorted(table.items(), key=lambda item: item[0].encode()):
        print(row(name, text))
    print("};")
