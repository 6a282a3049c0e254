"""A secret and the forms in which programs commonly show it."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

SECRET = 'sk-ab/cd+ef"gh-0123456789'
"""Every form of it differs from every other."""

FORMS = {
    "plain": SECRET,
    "JSON": json.dumps(SECRET)[1:-1],
    "URL": quote(SECRET, safe=""),
    "URL path": quote(SECRET),
    "URL query": quote_plus(SECRET),
    "base64": base64.b64encode(SECRET.encode()).decode().rstrip("="),
    "base64 of a login": base64.b64encode(f"user:{SECRET}".encode()).decode(),
    "base64 within a text": base64.b64encode(f"me:{SECRET}@".encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(f"u:{SECRET}??>>".encode()).decode(),
}


def shows_secret(text: str) -> bool:
    """Return whether a text holds the secret, or most of the middle of it, in one of its forms."""
    return any(form[8:-8] in text for form in FORMS.values())
