"""Settings as logs write them: whole numbers and switches, or nothing that can be told."""

from __future__ import annotations


def number(text: str) -> int | None:
    """A whole number of a setting; None for "auto" and -1."""
    plain = text.rstrip(".")
    return int(plain) if plain.isdecimal() and len(plain) < 16 and int(plain) > 0 else None


def truth(text: str) -> bool | None:
    """A switch of a setting."""
    return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
