"""A page that shows the API's schema without anything from elsewhere."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator

METHODS = ("get", "post", "put", "patch", "delete")


def reference_page(request: HttpRequest) -> HttpResponse:
    """Render every operation with its parameters, fields and answers."""
    generator = SchemaGenerator()
    schema: dict[str, Any] = generator.get_schema(public=True)
    operations = [
        _operation(schema, path, method, item[method])
        for path, item in schema["paths"].items()
        if not path.startswith("/api/schema/")
        for method in METHODS
        if method in item
    ]
    return render(
        request, "shop/reference.html", {"info": schema["info"], "operations": operations}
    )


def _operation(
    schema: dict[str, Any], path: str, method: str, operation: dict[str, Any]
) -> dict[str, Any]:
    return {
        "path": path,
        "method": method.upper(),
        "description": operation.get("description", ""),
        "parameters": operation.get("parameters", []),
        "body": _fields(schema, operation.get("requestBody", {})),
        "answers": [
            {
                "status": status,
                "description": answer.get("description", ""),
                "types": sorted(answer.get("content", {})),
                "fields": _fields(schema, answer),
            }
            for status, answer in sorted(operation["responses"].items())
        ],
    }


def _fields(schema: dict[str, Any], content_holder: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the members of the first media type's object, references resolved."""
    for media in content_holder.get("content", {}).values():
        shape = _resolved(schema, media.get("schema", {}))
        required = shape.get("required", [])
        return [
            {"name": name, "required": name in required, **_resolved(schema, member)}
            for name, member in shape.get("properties", {}).items()
        ]
    return []


def _resolved(schema: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        return dict(schema["components"]["schemas"][name])
    return shape
