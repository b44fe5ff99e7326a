"""/docs and /openapi.json: complete, right, and free of other hosts."""

import json
import re


async def test_the_reference_describes_every_field_and_its_examples_run(client, make_worker) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    make_worker(max_model_len=2048, num_blocks=256, chat_template=template)
    schema = (await client.get("/openapi.json")).json()
    for name, model in schema["components"]["schemas"].items():
        for field, about in model.get("properties", {}).items():
            assert about.get("description"), f"{name}.{field} is not described"
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert "Successful Response" not in [reply["description"] for reply in operation["responses"].values()], (
                path
            )
            assert operation["summary"] and operation["tags"] and operation["description"], path
            for parameter in operation.get("parameters", []):
                assert parameter.get("description"), (path, parameter["name"])
    chat = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert {example["value"]["model"] for example in chat.values()} == {"tiny"}
    body = schema["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    replies = [await client.post("/v1/jobs", json=example["value"]) for example in body["examples"].values()]
    assert [reply.status_code for reply in replies] == [202] * 7
    assert {reply.json()["model"] for reply in replies} == {"tiny"}


async def test_the_reference_tells_of_request_ids_and_of_every_refusal_of_a_body(client) -> None:
    schema = (await client.get("/openapi.json")).json()
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    replies = [reply for operation in operations for reply in operation["responses"].values()]
    assert len(replies) > 40 and all("x-request-id" in reply["headers"] for reply in replies)
    for path in ("/v1/jobs", "/v1/completions", "/v1/chat/completions"):
        told = schema["paths"][path]["post"]["responses"].keys()
        assert {"400", "401", "404", "408", "413", "422", "429", "503"} <= told


async def test_the_reference_gives_the_bounds_of_a_seed_exactly(client) -> None:
    text = (await client.get("/openapi.json")).text
    schemas = json.loads(text)["components"]["schemas"]
    for model in ("JobCreate", "CompletionCreate", "ChatCreate"):
        seed = schemas[model]["properties"]["seed"]
        (integer,) = [branch for branch in seed["anyOf"] if branch["type"] == "integer"]
        assert (seed["format"], integer["minimum"], integer["maximum"]) == ("int64", -(2**63), 2**63 - 1)
        assert isinstance(integer["maximum"], int)


async def test_reading_the_reference_again_asks_postgres_nothing(client, worker, monkeypatch) -> None:
    assert '"tiny"' in (await client.get("/openapi.json")).text

    async def fail(*_: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr("db.workers.models", fail)
    again = await client.get("/openapi.json", headers={"Host": "hr.example:99"})
    assert again.status_code == 200 and "http://hr.example:99/v1/jobs" in again.text


async def test_the_reference_page_needs_no_other_host(client) -> None:
    assert (await client.get("/")).headers["location"] == "/docs"
    page = (await client.get("/docs")).text
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert sources and all(source.startswith(("/", "data:")) for source in sources)
    for source in sources:
        if source.startswith("/"):
            assert (await client.get(source)).status_code == 200
