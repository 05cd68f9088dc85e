"""The specification of networks, worked by hand: every number below was found on paper from the rules."""

import doctest

import pytest

from penstock.errors import InputError
from tests.reference import orders
from tests.reference import simulation as reference_simulation
from tests.reference.network import Jobs, Network, PaperPool
from tests.reference.seam_policies import POLICIES
from tests.reference.simulation import simulate

COLUMNS = ("stage", "prompt", "output", "reuse", "context", "delay", "pending", "child", "sibling", "coin")


def make_jobs(*jobs):
    """Return jobs of ``(arrival, [request, ...])``, a request being the columns that are not 0."""
    first_request, rows = [0], []
    for _, requests in jobs:
        rows += requests
        first_request.append(len(rows))
    columns = {name: [row.get(name, 0) for row in rows] for name in COLUMNS}
    return Jobs([arrival for arrival, _ in jobs], first_request, **columns)


def call(stage=0, prompt=1, output=1, **more):
    return {"stage": stage, "prompt": prompt, "output": output, **more}


def make_pool(token_budget=4, ticks=1, **more):
    return PaperPool(batch_time=lambda tokens: ticks, token_budget=token_budget, **more)


def one_pool(stages=1, *, model=(), **more):
    """Return a network of one pool that serves so many stages."""
    return Network([make_pool(**more)], [0] * stages, **dict(model))


def served(history, replica=0):
    """Return (start, allocation) of each batch of a replica, tokens by request."""
    return [(batch.start, batch.allocation) for batch in history.batches if batch.replica == replica]


def loads(history, replica=0):
    """Return what each request gets in each batch."""
    return [allocation for _, allocation in served(history, replica)]


def of(history, what):
    return [getattr(request, what) for request in history.requests]


# ---------------------------------------------------------------- task graphs


def test_a_chain_goes_on_at_the_next_pool_when_it_has_finished_at_the_first():
    jobs = Jobs.chains([(0, [(0, 3, 2), (1, 2, 1)])])
    history = simulate(jobs, Network([make_pool(ticks=2), make_pool(ticks=3)], [0, 1]))
    assert served(history, 0) == [(0, {0: 3}), (2, {0: 1})]
    assert served(history, 1) == [(4, {1: 2})]
    assert of(history, "ready") == [0, 4]
    assert of(history, "first_token") == [2, 7]
    assert of(history, "finish") == [4, 7]
    assert of(history, "replica") == [0, 1]
    assert history.end == 7


def test_a_join_waits_for_the_slowest_branch():
    """The fork is done at 1; one branch takes until 6, the other until 3; so the join waits from 3 to 6."""
    jobs = make_jobs(
        (
            0,
            [
                call(0, child=1),
                call(1, pending=1, child=2, sibling=1),
                call(2, output=2, pending=1, child=1),
                call(3, pending=2),
            ],
        )
    )
    network = Network([make_pool(), make_pool(ticks=5)], [0, 1, 0, 0])
    history = simulate(jobs, network)
    assert of(history, "ready") == [0, 1, 1, 6]
    assert of(history, "finish") == [1, 6, 3, 7]


def test_jobs_that_branch_differently_meet_only_where_their_paths_do():
    jobs = Jobs.chains([(0, [(0, 2, 1), (1, 2, 1)]), (0, [(0, 2, 1), (2, 2, 1)]), (0, [(0, 2, 1)])])
    history = simulate(jobs, Network([make_pool(), make_pool(), make_pool(ticks=3)], [0, 1, 2]))
    assert served(history, 0) == [(0, {0: 2, 2: 2}), (1, {4: 2})]
    assert of(history, "finish") == [1, 2, 1, 4, 2]


def test_a_self_loop_queues_behind_those_that_came_meanwhile():
    jobs = Jobs.chains([(0, [(0, 2, 1), (0, 2, 1)]), (0, [(0, 2, 1)])])
    history = simulate(jobs, one_pool(token_budget=2))
    assert served(history) == [(0, {0: 2}), (1, {2: 2}), (2, {1: 2})]


def test_a_delay_passes_between_release_and_arrival_also_of_a_root():
    jobs = make_jobs((3, [call(delay=2, child=1), call(pending=1, delay=5)]))
    history = simulate(jobs, one_pool(ticks=2))
    assert of(history, "ready") == [5, 12]
    assert of(history, "finish") == [7, 14]
    assert [(batch.start, batch.duration) for batch in history.batches] == [(5, 2), (12, 2)]


def test_a_fork_whose_branches_just_end_is_served_at_once():
    jobs = make_jobs((0, [call(child=1), call(pending=1, sibling=1), call(pending=1)]))
    assert loads(simulate(jobs, one_pool())) == [{0: 1}, {1: 1, 2: 1}]


# ---------------------------------------------------------------- requests without prefill or decode


@pytest.mark.parametrize(("convention", "first", "finish"), [("engine", 1, 2), ("paper", 2, 3)])
def test_the_first_token_ends_prefill_in_engines_and_the_first_decode_in_the_paper(convention, first, finish):
    history = simulate(Jobs.chains([(0, [(0, 2, 2)])]), one_pool(convention=convention))
    assert (of(history, "first_token"), of(history, "finish")) == ([first], [finish])


@pytest.mark.parametrize("convention", ["engine", "paper"])
def test_a_stage_that_only_decodes_takes_an_iteration_for_every_token(convention):
    history = simulate(Jobs.chains([(4, [(0, 0, 3)])]), one_pool(convention=convention))
    assert served(history) == [(4, {0: 1}), (5, {0: 1}), (6, {0: 1})]
    assert (of(history, "first_token"), of(history, "finish")) == ([5], [7])


@pytest.mark.parametrize("convention", ["engine", "paper"])
def test_a_stage_that_only_prefills_finishes_with_its_last_prompt_token(convention):
    history = simulate(Jobs.chains([(0, [(0, 6, 0)])]), one_pool(convention=convention))
    assert served(history) == [(0, {0: 4}), (1, {0: 2})]
    assert (of(history, "first_token"), of(history, "finish")) == ([2], [2])


def test_a_request_without_tokens_finishes_on_arrival_and_its_child_takes_its_place_in_the_order_of_rows():
    """Request 1 is released at tick 0 by request 0, which has no tokens, and goes before request 2 of the next job."""
    jobs = Jobs.chains([(0, [(0, 0, 0), (0, 3, 1)]), (0, [(0, 3, 1)])])
    history = simulate(jobs, one_pool(token_budget=3))
    assert loads(history) == [{1: 3}, {2: 3}]
    assert of(history, "ready") == [0, 0, 0]
    assert of(history, "finish") == [0, 1, 2]
    assert of(history, "first_token") == [None, 1, 2]
    assert of(history, "replica") == [0, 0, 0]


@pytest.mark.parametrize(("arrival", "last_four"), [(1, [1, 1, 1, 0]), (2, [0, 1, 1, 1])])
def test_decodes_are_served_in_the_order_in_which_they_enter_decode(arrival, last_four):
    """Request 0's prompt is through at tick 2; request 1 decodes from its arrival, and at tick 2 goes behind."""
    jobs = Jobs.chains([(0, [(0, 2, 2)]), (arrival, [(1, 0, 3)])])
    history = simulate(jobs, one_pool(2, token_budget=1, policy=POLICIES["vllm-vanilla"]))
    assert loads(history) == [{0: 1}, {0: 1}, *({request: 1} for request in last_four)]


# ---------------------------------------------------------------- order between lines


def test_priority_serves_the_first_stage_and_gives_what_is_left_to_the_next():
    jobs = Jobs.chains([(0, [(0, 4, 1)]), (0, [(1, 3, 2)])])
    history = simulate(jobs, one_pool(2, order="priority", priority=[1, 0]))
    assert served(history) == [(0, {1: 3, 0: 1}), (1, {1: 1, 0: 3})]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("decode-first", [{0: 1}, {0: 1, 1: 2}, {0: 1, 1: 2}, {1: 2}]),
        ("priority", [{0: 1}, {1: 3}, {1: 3}, {0: 1}, {0: 1}]),
        ("fcfs", [{0: 1}, {0: 1, 1: 2}, {0: 1, 1: 2}, {1: 2}]),
    ],
)
def test_decode_first_serves_a_decode_of_the_last_stage_before_a_prompt_of_the_first(order, expected):
    jobs = Jobs.chains([(0, [(1, 1, 3)]), (1, [(0, 6, 1)])])
    assert loads(simulate(jobs, one_pool(2, token_budget=3, order=order, priority=[0, 1]))) == expected


def test_decode_first_goes_by_stage_inside_a_phase():
    """At tick 2 request 2 of stage 0 goes before request 1 of stage 1, which came earlier and is cut already."""
    jobs = Jobs.chains([(0, [(0, 2, 3)]), (1, [(1, 6, 1)]), (2, [(0, 3, 1)])])
    history = simulate(jobs, one_pool(2, token_budget=3, order="decode-first"))
    assert loads(history) == [{0: 2}, {0: 1, 1: 2}, {0: 1, 2: 2}, {2: 1, 1: 2}, {1: 2}]


def test_round_robin_begins_each_batch_one_stage_further():
    jobs = Jobs.chains([(0, [(0, 4, 1)]), (0, [(1, 3, 1)]), (0, [(2, 2, 1)])])
    history = simulate(jobs, one_pool(3, token_budget=2, order="round-robin"))
    assert loads(history) == [{0: 2}, {1: 2}, {2: 2}, {0: 2}, {1: 1}]


@pytest.mark.parametrize(
    ("budget", "prompts", "expected"),
    [
        (6, (10, 10), {0: 4, 1: 2}),  # weights 2 and 1
        (6, (10, 1), {0: 5, 1: 1}),  # what request 1 leaves goes to line 0
        (5, (10, 10), {0: 4, 1: 1}),  # floors of 3.33 and 1.67, and the one left over
        (1, (10, 10), {0: 1}),  # floors of 0 and 0
        (6, (1, 10), {0: 1, 1: 5}),
    ],
)
def test_hlpps_shares_the_budget_by_work_and_fills_what_is_left(budget, prompts, expected):
    jobs = Jobs.chains([(0, [(stage, prompt, 1)]) for stage, prompt in enumerate(prompts)])
    network = one_pool(2, token_budget=budget, order="hlpps", model={"prefill": [1.5, 1], "decode": [0.5, 0]})
    assert loads(simulate(jobs, network))[0] == expected


def test_hlpps_lets_the_policy_choose_within_a_share_and_fills_decodes_before_prompts():
    """At tick 1 shares of 5 are 2 and 2 (Z 2 and 2); FasterTransformer decodes 0 only, 2 and 3 alone; then 1 prefills.

    Line 0: decode 0, prompt 1; line 1: prompts 2 and 3. Its prompts get 2 tokens. Left are 5 - 1 - 2 = 2, for prompt 1.
    """
    jobs = Jobs.chains([(0, [(0, 1, 9)]), (1, [(0, 9, 1)]), (1, [(1, 1, 1)]), (1, [(1, 9, 1)])])
    network = one_pool(2, token_budget=5, order="hlpps", policy=POLICIES["fastertransformer"])
    assert served(simulate(jobs, network, until=2))[:2] == [
        (0, {0: 1}),
        (1, {0: 1, 2: 1, 3: 1, 1: 2}),
    ]


def pressed(replicas, order, decode=(1.0, 1.0, 1.0), tokens=2):
    """Two requests at stage 0, two where it leads to (pool 1), one at stage 1, which leads nowhere."""
    jobs = Jobs.chains([(0, [(stage, 9, 1)]) for stage in (0, 0, 1, 2, 2)])
    pools = [make_pool(tokens, order=order), make_pool(1, replicas=replicas)]
    model = {"prefill": [1.0] * 3, "decode": decode, "onward": [[0, 0, 1], [0, 0, 0], [0, 0, 0]]}
    return loads(simulate(jobs, Network(pools, [0, 0, 1], **model), until=1))[0]


def test_back_pressure_serves_the_stage_that_has_most_more_than_what_follows_it():
    assert pressed(1, "back-pressure") == {2: 2}  # (2 - 2) / 2 against 1 / 2
    assert pressed(2, "back-pressure") == {0: 2}  # (2 - 2 / 2) / 2: a tie, so the first
    assert pressed(1, "back-pressure", decode=(1.0, 3.0, 1.0)) == {2: 2}  # 0 against 1 / 4
    assert pressed(4, "back-pressure", decode=(1.0, 1.0, 1.0)) == {0: 2}  # (2 - 2 / 4) / 2 against 1 / 2
    assert pressed(4, "back-pressure", decode=(5.0, 1.0, 1.0)) == {2: 2}  # 1.5 / 6 against 1 / 2


def test_back_pressure_by_phase_weighs_prefill_against_decode_and_decode_against_the_next_prefill():
    """At tick 1 stage 0 has 1 prompt and 2 decodes: prefill (1 - 2) / m_p, decode (2 - prompts at stage 1) / m_d."""
    long = [(1, [(1, 50, 1)])] * 3  # prompts that stay at stage 1, pool 1
    jobs = Jobs.chains([(0, [(0, 1, 9)]), (0, [(0, 1, 9)]), (1, [(0, 9, 1)]), *long])
    for prefill, decode, expected in [(1.0, 2.0, {0: 1, 1: 1}), (2.0, 1.0, {2: 2}), (1.0, 1.0, {0: 1, 1: 1})]:
        network = Network(
            [make_pool(2, order="back-pressure-phase"), make_pool(1)],
            [0, 1],
            [prefill, 1.0],
            [decode, 1.0],
            onward=[[0, 1], [0, 0]],
        )
        assert loads(simulate(jobs, network, until=2))[1] == expected  # -1 / m_p against (2 - 3) / m_d


def test_an_order_of_a_users_own_sees_its_lines_and_ranks_them():
    seen = []

    def last_first(lines, params):
        seen.append([tuple(line) for line in lines])
        return orders.BY_LINE, [(place, 0) for place in range(len(lines))]

    jobs = Jobs.chains([(0, [(0, 1, 2)]), (0, [(1, 2, 1)]), (1, [(0, 5, 1)])])
    model = {"prefill": [2.0, 3.0], "decode": [4.0, 0.0], "onward": [[0, 0.5], [0, 0]]}
    history = simulate(jobs, one_pool(2, token_budget=3, order=last_first, model=model))
    assert loads(history)[:2] == [{1: 2, 0: 1}, {0: 1, 2: 2}]
    # prompts, their tokens, decoding, m_p, m_d, next, next in prefill, batches
    assert seen[0] == [(1, 1, 0, 2.0, 4.0, 0.5, 0.5, 0), (1, 2, 0, 3.0, 0.0, 0, 0, 0)]
    assert seen[1] == [(1, 5, 1, 2.0, 4.0, 0.0, 0.0, 1), (0, 0, 0, 3.0, 0.0, 0, 0, 1)]


# ---------------------------------------------------------------- policies and limits inside lines


def test_each_line_has_the_policy_to_itself():
    """FasterTransformer decodes in line 0 and, with what is left, prefills in line 1, where nothing decodes."""
    jobs = Jobs.chains([(0, [(0, 1, 3)]), (1, [(0, 4, 1)]), (1, [(1, 4, 1)])])
    network = one_pool(2, order="priority", priority=[0, 1], policy=POLICIES["fastertransformer"])
    assert loads(simulate(jobs, network)) == [{0: 1}, {0: 1, 2: 3}, {0: 1, 2: 1}, {1: 4}]


def test_in_scope_batch_the_lines_share_the_slots():
    """Two slots: the prompts of line 0 take both; then one is left for line 1."""
    jobs = Jobs.chains([(0, [(0, 1, 1)]), (0, [(0, 2, 1)]), (0, [(0, 1, 1)]), (0, [(1, 1, 2)]), (0, [(1, 1, 1)])])
    network = one_pool(2, order="priority", priority=[0, 1], scope="batch", max_batch_size=2)
    assert loads(simulate(jobs, network)) == [{0: 1, 1: 2}, {2: 1, 3: 1}, {3: 1, 4: 1}]


def test_in_scope_running_a_prompt_of_the_first_stage_waits_for_decodes_of_the_last():
    """Two may run. Request 0 leaves at tick 3, so request 2 starts; request 1, which it holds up, leaves at 5."""
    jobs = Jobs.chains([(0, [(1, 1, 3)]), (0, [(1, 1, 4)]), (1, [(0, 6, 1)]), (1, [(1, 1, 1)])])
    network = one_pool(2, order="priority", priority=[0, 1], scope="running", max_batch_size=2)
    together = {0: 1, 1: 1}
    assert loads(simulate(jobs, network)) == [together, together, together, {2: 4}, {2: 2, 1: 1}, {3: 1}]


def test_in_scope_running_a_cut_prompt_of_another_line_runs_too():
    """Request 0 is cut at tick 0; request 1 begins at tick 1 before it, so two run, and request 2 waits for one."""
    jobs = Jobs.chains([(0, [(1, 7, 1)]), (1, [(0, 3, 2)]), (1, [(0, 1, 1)])])
    network = one_pool(2, order="priority", priority=[0, 1], scope="running", max_batch_size=2)
    assert loads(simulate(jobs, network)) == [{0: 4}, {1: 3, 0: 1}, {1: 1, 0: 2}, {2: 1}]


def test_requests_that_decode_from_the_start_run_but_a_batch_serves_no_more_than_its_slots():
    jobs = Jobs.chains([(0, [(0, 0, 1)])] * 3 + [(0, [(1, 2, 1)])])
    network = one_pool(2, token_budget=9, order="decode-first", scope="running", max_batch_size=2)
    assert loads(simulate(jobs, network)) == [{0: 1, 1: 1}, {2: 1, 3: 2}]


# ---------------------------------------------------------------- routers


def replicas_of(router, jobs, replicas=3, until=None, **more):
    return of(simulate(jobs, one_pool(replicas=replicas, router=router, **more), until=until), "replica")


def tossed(*coins, prompt=1):
    return make_jobs(*[(0, [call(prompt=prompt, coin=coin)]) for coin in coins])


def test_a_random_router_takes_the_replica_in_whose_part_the_coin_falls():
    assert replicas_of("random", tossed(0, 0x55555555, 0x55555556, 0xAAAAAAAA, 0xAAAAAAAB, 2**32 - 1)) == [
        0, 0, 1, 1, 2, 2
    ]  # fmt: skip


def test_round_robin_takes_replicas_in_turn():
    assert replicas_of("round-robin", tossed(0, 0, 0, 0)) == [0, 1, 2, 0]


def test_jsq_takes_the_replica_with_fewest_unfinished_requests_and_of_equals_the_first():
    jobs = Jobs.chains([(0, [(0, 9, 1)]), (0, [(0, 1, 1)]), (0, [(0, 1, 1)]), (0, [(0, 1, 1)]), (1, [(0, 1, 1)])])
    # at tick 0: 0, 1, then ties; at tick 1 replica 1 has finished both
    assert replicas_of("jsq", jobs, replicas=2) == [0, 1, 0, 1, 1]


def test_tokens_counts_what_is_not_in_a_batch_that_has_started():
    """At tick 0 request 2 sees 9 and 3 tokens; at tick 1 request 3 sees 9 - 4 and 3 + 3 - 4, request 4 then 5 and 6."""
    jobs = Jobs.chains([(0, [(0, 9, 1)]), (0, [(0, 3, 1)]), (0, [(0, 3, 1)]), (1, [(0, 4, 1)]), (1, [(0, 1, 1)])])
    assert replicas_of("tokens", jobs, replicas=2) == [0, 1, 1, 1, 0]


def test_tokens_counts_a_batch_that_starts_now_as_not_started():
    """At tick 1 both have 1 token left, which goes into a batch just after request 2 has been routed: a tie."""
    jobs = Jobs.chains([(0, [(0, 4, 2)]), (0, [(0, 4, 2)]), (1, [(0, 1, 1)])])
    assert replicas_of("tokens", jobs, replicas=2) == [0, 1, 0]


@pytest.mark.parametrize("router", ["work", "measure"])
def test_work_weighs_requests_by_stage_and_phase(router):
    """Request 0 decodes from tick 1 on and weighs 1; request 1 is in prefill until tick 2 and weighs 4."""
    jobs = Jobs.chains([(0, [(0, 1, 9)]), (0, [(0, 8, 9)]), (1, [(0, 1, 9)]), (1, [(0, 1, 9)]), (2, [(0, 1, 9)])])
    # at 1: 1 < 4, then 1 + 4 > 4; at 2: replica 0 has two in decode, 2; replica 1 has one, and one in prefill: 1 + 4
    assert replicas_of(router, jobs, replicas=2, weights={0: (4, 1)}, until=3) == [0, 1, 0, 1, 0]


def test_a_prompt_counts_as_prefill_until_its_last_batch_has_ended():
    """At tick 1 request 0's prompt is all in the batch that ends at 2; it weighs 4 still, more than request 1's 2."""
    jobs = Jobs.chains([(0, [(0, 1, 9)]), (0, [(1, 1, 9)]), (1, [(0, 1, 1)])])
    network = Network(
        [make_pool(ticks=2, replicas=2, router="work", weights={0: (4, 1), 1: (2, 1)})],
        [0, 0],
    )
    assert of(simulate(jobs, network, until=1), "replica") == [0, 1, 1]


def test_power_of_two_compares_two_replicas_that_the_coin_names():
    """Low bits choose the first: 0 of 3; high bits one of the other two."""
    first, second, third = 0x0000_0000, 0x8000_0000, 0xFFFF_FFFF  # (0, 1), (0, 2), (2, 1)
    assert replicas_of("power-of-two", tossed(first, first, first)) == [0, 1, 0]
    assert replicas_of("power-of-two", tossed(second, second, first, third)) == [0, 2, 1, 2]
    assert replicas_of("power-of-two", tossed(third, third, third, third)) == [2, 1, 2, 1]
    assert replicas_of("power-of-two", tossed(third, third), replicas=1) == [0, 0]


@pytest.mark.parametrize("affinity", [True, False])
def test_affinity_keeps_the_requests_of_a_job_at_one_replica(affinity):
    """Job 0 comes back at tick 1, when replica 0 has job 1's long prompt; without affinity it goes to replica 1."""
    jobs = Jobs.chains([(0, [(0, 1, 1), (0, 1, 1)]), (0, [(0, 1, 1)]), (0, [(0, 20, 1)])])
    assert replicas_of("jsq", jobs, replicas=2, affinity=affinity) == [0, 0 if affinity else 1, 1, 0]


# ---------------------------------------------------------------- prefix reuse


def follow_up(delay=0, **more):
    return call(prompt=10, output=1, reuse=6, context=-1, pending=1, delay=delay, **more)


@pytest.mark.parametrize(
    ("retention", "delay", "cached"), [(None, 0, 6), (None, 99, 6), (4, 4, 6), (4, 5, 0), (0, 0, 6), (0, 1, 0)]
)
def test_a_prefix_is_reused_as_long_as_it_is_kept(retention, delay, cached):
    jobs = make_jobs((0, [call(prompt=5, child=1), follow_up(delay)]))
    history = simulate(jobs, one_pool(token_budget=100, model={"retention": retention}))
    assert of(history, "cached") == [0, cached]
    assert loads(history) == [{0: 5}, {1: 10 - cached}]


def test_one_prompt_token_at_least_is_processed():
    jobs = make_jobs((0, [call(prompt=5, child=1), call(prompt=5, reuse=5, context=-1, pending=1)]))
    history = simulate(jobs, one_pool())
    assert of(history, "cached") == [0, 4]
    assert loads(history) == [{0: 4}, {0: 1}, {1: 1}]


def test_a_prefix_is_found_at_the_replica_where_an_earlier_request_of_its_context_ran():
    """Request 1 ran at replica 1, so nothing is there for it; request 2 at replica 0 finds what it shares with 0."""
    first = call(prompt=9, child=1)
    second = call(prompt=12, reuse=3, context=-1, pending=1, child=1)
    third = call(prompt=15, reuse=12, context=-1, pending=1, child=1)
    fourth = call(prompt=20, reuse=15, context=-1, pending=1)
    jobs = make_jobs((0, [first, second, third, fourth]))
    history = simulate(jobs, one_pool(token_budget=100, replicas=2, router="round-robin"))
    assert of(history, "replica") == [0, 1, 0, 1]
    assert of(history, "cached") == [0, 0, 3, 12]
    assert loads(history) == [{0: 9}, {2: 12}]


# ---------------------------------------------------------------- time, counts, errors


def test_a_run_stops_after_the_arrivals_at_its_last_tick():
    jobs = Jobs.chains([(0, [(0, 2, 1), (0, 1, 1)]), (3, [(0, 1, 1)]), (5, [(0, 1, 1)])])
    history = simulate(jobs, one_pool(ticks=2), until=3)
    assert of(history, "ready") == [0, 2, 3, None]
    assert of(history, "finish") == [2, None, None, None]
    assert served(history) == [(0, {0: 2}), (2, {1: 1})]
    assert (history.end, history.batches[-1].end) == (3, 4)


def test_counts_are_those_after_arrivals_and_before_a_batch():
    """Ticks of 2: request 0 is in prefill until 2 and decodes until 4; request 1 comes at 2; request 2 at 4."""
    jobs = Jobs.chains([(0, [(0, 3, 2), (1, 2, 1)]), (2, [(0, 5, 1)])])
    network = Network([make_pool(ticks=2), make_pool(ticks=2, replicas=2)], [0, 1])
    history = simulate(jobs, network, instants=[0, 1, 2, 3, 4, 5, 6, 99])
    assert [(i.tick, i.prefill, i.decode, i.unprocessed_tokens) for i in history.instants] == [
        (0, [1, 0], [0, 0], [4, 0, 0]),
        (1, [1, 0], [0, 0], [1, 0, 0]),
        (2, [1, 0], [1, 0], [6, 0, 0]),
        (3, [1, 0], [1, 0], [2, 0, 0]),
        (4, [1, 1], [0, 0], [2, 2, 0]),
        (5, [1, 1], [0, 0], [0, 0, 0]),
        (6, [0, 0], [0, 0], [0, 0, 0]),
    ]


def test_a_policy_that_serves_nobody_is_refused():
    with pytest.raises(InputError, match=r"at tick 0 replica 0 serves none of 1 requests"):
        simulate(Jobs.chains([(0, [(0, 1, 1)])]), one_pool(policy=lambda queue, limits, params: (0, 0, 0)))


def test_a_policy_that_asks_for_less_than_nothing_is_refused():
    with pytest.raises(InputError, match=r"asks for -1 prefill and 0 decode tokens"):
        simulate(Jobs.chains([(0, [(0, 1, 1)])]), one_pool(policy=lambda queue, limits, params: (-1, 0, 0)))


def test_an_unknown_mode_and_a_batch_without_time_are_refused():
    jobs = Jobs.chains([(0, [(0, 1, 1)])])
    with pytest.raises(InputError, match="mode 7"):
        simulate(jobs, one_pool(order=lambda lines, params: (7, [(0, 0)])))
    with pytest.raises(InputError, match="batch_time of a batch = 0"):
        simulate(jobs, one_pool(ticks=0))


@pytest.mark.parametrize("what", ["scope", "convention", "router", "order"])
def test_a_name_that_is_not_known_is_refused(what):
    with pytest.raises(InputError, match=f"there is no {what} 'nonsense'"):
        make_pool(**{what: "nonsense"})


@pytest.mark.parametrize("what", ["replicas", "token_budget"])
def test_a_pool_of_nothing_is_refused(what):
    with pytest.raises(InputError, match=f"{what} = 0"):
        make_pool(**{what: 0})


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(reference_simulation).failed == 0
