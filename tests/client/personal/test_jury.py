"""Which rows a client holds out, and that no model is judged by a row that it was trained on."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polytempo_client.personal.jury import MOST_NEW, Rows, deal, fingerprints, jury_key
from polytempo_client.personal.rule import ENOUGH_SOLO_TASKS, SOLO_TASKS, Beginning, ClientMemory, remembered

FEATURES = fingerprints(np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32))


def dealt(rows: np.ndarray, labels: np.ndarray | None = None, memory: ClientMemory | None = None, key: int = 7) -> Rows:
    y = np.zeros(len(rows), np.uint64) if labels is None else fingerprints(labels)
    return deal(rows, FEATURES[rows], y, key, memory)


def trained(rows: Rows, memory: ClientMemory | None = None) -> ClientMemory:
    return remembered(Beginning(memory=memory), np.zeros(2, np.float32), rows, lambda model, rows: np.zeros((0, 2)))


def soloist(rows: Rows) -> ClientMemory:
    return replace(trained(rows), numbers={SOLO_TASKS: ENOUGH_SOLO_TASKS})


def test_about_a_tenth_of_the_rows_is_the_jury_and_the_rest_is_trained_on() -> None:
    rows = np.arange(400)
    found = dealt(rows)
    assert 25 <= len(found.jury) <= 60
    assert sorted([*found.train, *found.jury]) == rows.tolist()
    assert not found.changed


def test_rows_that_differ_in_one_bit_have_other_fingerprints_and_equal_rows_the_same() -> None:
    x = np.zeros((3, 7), np.float32)
    x[1, 3] = np.float32(1e-45)
    one, other, again = fingerprints(x)
    assert one == again
    assert one != other


def test_a_row_keeps_its_part_whatever_other_rows_come_and_go() -> None:
    everything, some = dealt(np.arange(400)), dealt(np.arange(100, 250))
    assert set(some.train) == set(everything.train) & set(range(100, 250))
    assert set(some.jury) == set(everything.jury) & set(range(100, 250))


def test_another_client_has_another_jury() -> None:
    rows = np.arange(400)
    assert set(dealt(rows, key=jury_key(0, 1)).jury) != set(dealt(rows, key=jury_key(0, 2)).jury)


def test_a_client_whose_only_row_would_be_a_juror_trains_on_it_and_has_no_jury() -> None:
    juror = dealt(np.arange(400)).jury[:1]
    found = dealt(juror)
    assert found.train.tolist() == juror.tolist()
    assert len(found.jury) == 0
    later = dealt(np.arange(400), memory=trained(found))
    assert juror[0] not in later.jury


def test_where_most_rows_are_new_all_that_are_judge_the_old_model() -> None:
    before = dealt(np.arange(40))
    after = dealt(np.arange(30, 80), memory=trained(before))
    assert after.changed
    assert set(after.jury) >= set(range(40, 80))
    assert not set(after.jury) & set(before.train)


def test_a_few_new_rows_do_not_count_as_a_change() -> None:
    before = dealt(np.arange(100))
    after = dealt(np.arange(120), memory=trained(before))
    assert not after.changed
    assert set(after.jury) == set(dealt(np.arange(120)).jury)


def test_rows_whose_labels_were_swapped_are_new() -> None:
    rows = np.arange(50)
    before = dealt(rows, np.zeros(50, np.int64))
    after = dealt(rows, np.ones(50, np.int64), trained(before))
    assert after.changed
    assert len(after.jury) == 50


def test_a_soloist_trains_on_all_rows_and_is_judged_only_by_those_that_it_was_not_trained_on() -> None:
    rows = np.arange(400)
    before = dealt(rows)
    after = dealt(rows, memory=soloist(before))
    assert after.train.tolist() == rows.tolist()
    assert set(after.jury) == set(before.jury)
    assert len(dealt(rows, memory=soloist(after)).jury) == 0


def test_new_rows_judge_a_soloist_before_it_trains_on_them_jurors_or_not() -> None:
    whole = dealt(np.arange(300), memory=soloist(dealt(np.arange(300))))
    after = dealt(np.arange(320), memory=soloist(whole))
    assert after.jury.tolist() == list(range(300, 320))
    assert not after.changed


def test_a_soloist_whose_data_change_has_a_jury_again_of_rows_that_it_was_never_trained_on() -> None:
    whole = dealt(np.arange(200), memory=soloist(dealt(np.arange(200))))
    memory = soloist(whole)
    after = dealt(np.arange(150, 400), memory=memory)
    assert after.changed
    assert set(after.jury) < set(range(200, 400))
    memory = trained(after, memory)
    assert not memory.is_soloist
    later = dealt(np.arange(150, 400), memory=memory)
    assert set(later.jury) == set(dealt(np.arange(400)).jury) & set(range(200, 400))
    assert not set(later.jury) & set(after.train)


@given(st.lists(st.tuples(st.sets(st.integers(0, 399), min_size=1), st.booleans()), min_size=1, max_size=8))
def test_no_judge_is_a_row_that_the_models_history_was_trained_on(held: list[tuple[set[int], bool]]) -> None:
    memory, history = None, set[int]()
    for rows, plays_solo in held:
        if memory is not None and plays_solo:
            memory = replace(memory, numbers={SOLO_TASKS: ENOUGH_SOLO_TASKS})
        found = dealt(np.array(sorted(rows)), memory=memory)
        assert not set(found.jury.tolist()) & history
        history = set(found.train.tolist()) | (set() if found.changed else history)
        memory = trained(found, memory)


def test_at_most_sixty_rows_judge_where_the_data_have_changed_and_they_are_the_same_in_any_order() -> None:
    memory = trained(dealt(np.arange(100)))
    found = dealt(np.arange(100, 400), memory=memory)
    assert found.changed
    assert len(found.jury) == MOST_NEW
    assert len(found.train) > 250  # jurors among the new rows are not trained on; others that judge once are
    again = dealt(np.arange(100, 400)[::-1], memory=memory)
    assert set(again.jury) == set(found.jury)
