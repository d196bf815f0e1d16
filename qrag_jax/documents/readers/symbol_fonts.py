"""Characters of fonts that give letters other shapes, at the private code points that documents use for them."""

_FIRST = 0x20
_SYMBOL = (
    " !∀#∃%&∍()*+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}~"
    f"{' ' * 33}€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪ 〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"
)
_BOXES = {"wingdings": {0xA8: "☐", 0xFB: "☒", 0xFC: "✓", 0xFD: "☒", 0xFE: "☑", 0xE0: "→", 0xF0: "⇨", 0x6F: "☐"},
          "wingdings 2": {0x50: "✓", 0x51: "☒", 0x52: "☑", 0x54: "☒", 0xA3: "☐"}}  # fmt: skip


def character(font: str, code: int) -> str | None:
    """The character of a code in a font of symbols; a bullet for ornaments, None for other fonts."""
    font, code = font.lower(), code & 0xFF
    if font == "symbol":
        return _SYMBOL[code - _FIRST : code - _FIRST + 1] or "•"
    return _BOXES.get(font, {}).get(code, "•") if font.startswith(("wingdings", "webdings", "zapf")) else None
