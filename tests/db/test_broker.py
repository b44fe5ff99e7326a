"""The Celery app: what beat sends is known, and the stock transport leaves the tier queues alone."""

from pathlib import Path

from celery import Celery

from db.broker import TASKS_QUEUE, app, engine_worker_argv, make_app, tasks_worker_argv
from tests.servers import isolated_settings


def make(redis_url: str) -> Celery:
    return make_app(isolated_settings(Path("data"), database_url="postgresql://h/d", redis_url=redis_url))


def test_every_scheduled_task_exists_and_goes_to_the_housekeeping_queue() -> None:
    app.loader.import_default_modules()
    for entry in app.conf.beat_schedule.values():
        assert entry["task"] in app.tasks
        assert app.amqp.router.route({}, entry["task"])["queue"].name == TASKS_QUEUE
        assert entry["options"]["expires"] >= entry["schedule"].total_seconds()


def test_broker_is_the_same_server_as_kombu_spells_it() -> None:
    assert make("unix:///run/valkey.sock").conf.broker_url == "redis+socket:///run/valkey.sock"
    assert make("redis://cache:6379/3").conf.broker_url == "redis://cache:6379/3"


def test_engine_worker_consumes_no_tier_queue_and_the_tasks_worker_only_its_own() -> None:
    settings = isolated_settings(Path("data"), database_url="postgresql://h/d", redis_url="redis://h")
    settings = settings.model_copy(update={"model_name": "m"})
    argv = engine_worker_argv(settings)
    left_alone = argv[argv.index("--exclude-queues") + 1].split(",")
    assert {"generate.m.high", "generate.m.normal", "generate.m.low"} <= set(left_alone)
    assert "--queues" not in argv
    argv = tasks_worker_argv(settings)
    assert argv[argv.index("--queues") + 1] == TASKS_QUEUE
