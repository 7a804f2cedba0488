"""Jobs on threads: each done once, errors passed on, the count set and read."""

import subprocess
import sys
import threading

import pytest

from dtomo import threads
from tests import laws


@pytest.mark.parametrize("jobs", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_every_job_is_done_once(jobs, count):
    done, lock = [], threading.Lock()

    def work(span):
        with lock:
            done.extend(range(*span))

    threads.run_jobs(work, jobs, count)
    assert sorted(done) == list(range(jobs))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_error_is_raised_where_the_work_was_asked_for(count):
    def work(span):
        if 5 in range(*span):
            raise KeyError("five")

    with pytest.raises(KeyError, match="five"):
        threads.run_jobs(work, 20, count)
    threads.run_jobs(lambda span: None, 20, count)


def test_calls_from_several_threads_at_once():
    sums = [0] * 4

    def one(n):
        done, lock = [], threading.Lock()

        def work(span):
            with lock:
                done.extend(range(*span))

        for _ in range(50):
            threads.run_jobs(work, 10, 2)
        sums[n] = sum(done)

    callers = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert sums == [50 * 45] * 4


def test_count_is_at_least_one():
    for asked, given in ((5, 5), (0, 1), (-3, 1)):
        with laws.thread_count(asked):
            assert threads.get_threads() == given


FORKED = """
import multiprocessing, time
from dtomo import threads

def total(_):
    done = []
    threads.run_jobs(lambda span: done.extend(range(*span)), 100, 2)
    return sum(done)

assert total(0) == 4950
threads.run_jobs(lambda span: time.sleep(0.05), 8, 2)
time.sleep(0.2)
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.map_async(total, [1]).get(8))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forking with threads is usual on Linux only")
def test_a_forked_process_has_threads_of_its_own():
    """Threads do not survive a fork; the child must not wait for its parent's."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["[4950]"], done.stderr[-500:]


@pytest.mark.parametrize("count", [1, 3])
def test_blocks_come_back_in_order(count):
    with laws.thread_count(count):
        assert threads.run_blocks(lambda start, stop: (start, stop), 10, 4) == [(0, 4), (4, 8), (8, 10)]
        assert threads.run_blocks(lambda start, stop: (start, stop), 0, 4) == []


def test_work_that_asks_for_threads_itself():
    sums = [0] * 8

    def inner(job):
        done = []
        threads.run_jobs(lambda span: done.extend(range(*span)), 10, 4)
        sums[job] = sum(done)

    threads.run_jobs(lambda span: [inner(job) for job in range(*span)], 8, 4)
    assert sums == [45] * 8


@pytest.mark.parametrize("count", [1, 2, 3])
def test_map_in_order(count):
    """Results in order, few items taken ahead, and kernels that are called stay on the thread that calls them."""
    before, taken, here = threads.get_threads(), [], set()

    def items():
        for number in range(20):
            taken.append(number)
            yield number

    def work(number):
        names = []
        threads.run_jobs(lambda span: names.append(threading.current_thread().name), 5)
        here.add(threading.current_thread().name)
        assert set(names) == {threading.current_thread().name} or count == 1
        return number**2

    threads.set_threads(count)
    try:
        for place, value in enumerate(threads.map_in_order(work, items())):
            assert value == place**2
            assert len(taken) <= place + count + 1
    finally:
        threads.set_threads(before)
    assert len(here) <= count


def test_map_in_order_raises_what_is_raised():
    def work(number):
        if number == 3:
            raise ValueError("three")
        return number

    results = threads.map_in_order(work, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
