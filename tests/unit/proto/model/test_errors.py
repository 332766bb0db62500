from proto.model.errors import STATUS, ErrorCode, TopicsError, invalid, is_passing, moving, not_ready, starting


def test_every_code_has_one_status() -> None:
    assert set(STATUS) == set(ErrorCode)
    assert all(400 <= status <= 599 for status in STATUS.values())


def test_codes_are_snake_case() -> None:
    assert all(code.value == code.name.lower() for code in ErrorCode)


def test_errors_carry_what_their_sender_gets() -> None:
    error = invalid("limit is -1", field="limit")
    assert (error.status, error.code, error.detail) == (400, "invalid_request", {"field": "limit"})
    assert not_ready("replaying").retry_after_ms == 1000
    assert TopicsError(ErrorCode.INTERNAL, "x").detail is None


def test_a_refusal_that_passes_is_known_by_its_reason() -> None:
    error = moving(3)
    assert (error.status, error.detail) == (503, {"shard": 3, "reason": "moving", "outcome": "not_done"})
    assert is_passing(error, 3)
    assert is_passing(starting("x"), 3)
    assert not is_passing(error, 2), "another shard was asked on the way"
    assert not is_passing(None, 3)
    assert not is_passing(TopicsError(ErrorCode.INTERNAL, "x"), 3)
    assert not is_passing(not_ready("the bucket is away", reason="bucket_away", outcome="not_done"), 3)
    assert not is_passing(not_ready("x", shard=3, reason="moving", outcome="unknown"), 3)
    assert not is_passing(not_ready("x", shard=3, reason="moving", outcome="not_done", redriven=2), 3)
