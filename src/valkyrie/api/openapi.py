"""The OpenAPI description: what the views' own docstrings say, and no validation errors of FastAPI's."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from fastapi import FastAPI

from valkyrie.api import answers, bodies
from valkyrie.api.routes import library as uploads
from valkyrie.api.routes import server, trials
from valkyrie.views import jobs, requests, resources, runs
from valkyrie.views import runs as trial_views

_MODULES: tuple[ModuleType, ...] = (
    resources,
    requests,
    runs,
    trial_views,
    jobs,
    bodies,
    answers,
    server,
    trials,
    uploads,
)


def describe(app: FastAPI) -> None:
    """Let the application describe itself with what its types say of their fields."""
    plain = app.openapi

    def complete() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(plain())
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]


def _completed(schema: dict[str, Any]) -> dict[str, Any]:
    schemas = schema["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operation in _operations(schema):
        told = operation["responses"].get("422", {})
        if "HTTPValidationError" in str(told):
            del operation["responses"]["422"]  # ours are 400
    for name, found in schemas.items():
        for field, words in _field_docs().get(name, {}).items():
            if field in found.get("properties", {}):
                found["properties"][field].setdefault("description", words)
    return schema


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in schema["paths"].values():
        yield from methods.values()


@cache
def _field_docs() -> dict[str, dict[str, str]]:
    """The text under each field of each class of the modules views are in."""
    found: dict[str, dict[str, str]] = {}
    for module in _MODULES:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, {}).update(_docs_of(node))
    return found


def _docs_of(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, words in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant):
            yield field.target.id, inspect.cleandoc(str(words.value.value))
