"""What components offload runs on threads of its own, begun with the first piece of work."""

from __future__ import annotations

import threading

from bb_edge.cli.offloading import Offloading


def test_work_runs_beside_the_caller() -> None:
    pool, names, begun, go = Offloading(), [], threading.Event(), threading.Event()
    before = threading.active_count()

    def work() -> None:
        names.append(threading.current_thread().name)
        begun.set()
        go.wait()

    pool.submit(work)
    assert begun.wait(60), "the caller goes on meanwhile"
    assert threading.active_count() == before + 1
    go.set()
    pool.close()
    assert names[0].startswith("bb-offload")


def test_what_has_not_begun_is_dropped_at_the_end() -> None:
    pool, go, ran = Offloading(), threading.Event(), []
    threads = [threading.Semaphore(0) for _ in range(8)]
    for begun in threads:

        def work(begun: threading.Semaphore = begun) -> None:
            begun.release()
            go.wait()
            ran.append(begun)

        pool.submit(work)
    assert threads[0].acquire(timeout=60)
    late = threading.Event()
    pool.submit(late.set)
    pool.close()
    go.set()
    assert not late.is_set()


def test_a_pool_without_work_has_no_threads() -> None:
    pool, before = Offloading(), threading.active_count()
    pool.close()
    assert threading.active_count() == before
