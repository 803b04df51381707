"""The service's frame: health, problems for what is not there, bodies that are too large or of the wrong type."""

from tests.support.service import Service, running


async def test_health_and_what_is_not_there(database_url: str) -> None:
    async with running(database_url) as service:
        assert await answer(service, "GET", "/healthz") == (200, {"status": "ok"})
        assert await answer(service, "GET", "/readyz") == (200, {"status": "ready"})
        status, body = await answer(service, "GET", "/nowhere")
        assert (status, body["code"], body["status"]) == (404, "not_found", 404)
        response = await service.http.post("/healthz")
        assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
        assert response.json()["code"] == "method_not_allowed"
        assert response.headers["content-type"] == "application/problem+json"


async def answer(service: Service, method: str, path: str) -> tuple[int, dict[str, object]]:
    response = await service.http.request(method, path)
    return response.status_code, response.json()
