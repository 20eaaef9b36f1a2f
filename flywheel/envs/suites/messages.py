"""Translate the texts of a site from English by a small message catalogue.

`shared/messages/LANGUAGE.json` holds what all sites share, `SITE/messages/LANGUAGE.json` a site's own: a JSON object
from the English text, with its `{placeholders}`, to the translation. A text without a translation is shown in English
and added to `missing`, so that a test can require that there are none.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from flywheel.utils.errors import BadInput

LANGUAGES = ("en", "zh")
_SHARED = Path(__file__).parent / "shared"


class Messages:
    """Translate the texts of one site. folder: the site's; language: one of LANGUAGES."""

    def __init__(self, folder: Path, language: str) -> None:
        self.language = language
        self._texts = {} if language == "en" else {**_read(_SHARED, language), **_read(folder, language)}
        self.missing: set[str] = set()  # texts that were requested and are not in the catalogue

    def __call__(self, text: str, /, **values: Any) -> str:
        """Return `text` in this language, with `values` in its placeholders."""
        if self.language != "en" and text:
            if text not in self._texts:
                self.missing.add(text)
            text = self._texts.get(text, text)
        return text.format(**values) if values else text


@functools.cache
def load_messages(folder: Path, language: str) -> Messages:
    """Return the cached catalogue of a site. Raises BadInput for an unknown language or a broken file."""
    if language not in LANGUAGES:
        raise BadInput(f"no language {language!r}", where=folder, fix=f"known are {', '.join(LANGUAGES)}")
    return Messages(folder, language)


def _read(folder: Path, language: str) -> dict[str, str]:
    path = folder / "messages" / f"{language}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"the messages are not a JSON object: {error}", where=path) from None
