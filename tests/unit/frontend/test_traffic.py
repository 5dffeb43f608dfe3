"""Label values that no method gives."""

from scheduler_svc.frontend.traffic import Traffic


def test_a_call_without_a_key_is_started_handled_and_refused() -> None:
    traffic = Traffic()
    traffic.denied()
    counted = {(one.name, *one.labels): one.counter for one in traffic.render()}
    assert counted == {
        ("grpc_server_started", "any"): 1,
        ("grpc_server_handled", "any", "UNAUTHENTICATED"): 1,
        ("requests_rejected", "unauthenticated"): 1,
    }
