"""A WSGI and an ASGI application, for gunicorn and uvicorn."""


def wsgi(environ, start_response):
    environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Length", "3"), ("Content-Type", "text/plain")])
    return [b"ok\n"]


async def asgi(scope, receive, send):
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"ok\n"})
