"""Which tests take longest: `make test` leaves them to `make test-long`, and the continuous integration runs both.

What is here has something shorter beside it that does not: real platforms are deployed on, services measured, runs
killed and gone on with, and bounds held against simulated runs in `make test` too. A file of ``tests/``, a test of it,
or either of one case alone, where that has taken 3 s of a CPU and more.
"""

from __future__ import annotations

LONG = frozenset(
    [
        # Whole studies on machines that are reached as a user's would be.
        *("fleet_namespaces", "fleet_processes", "generator_elsewhere_deployed", "host_deployed", "ssh_deployed"),
        # Real services, one by one, on each platform that they run on.
        *("films_deployed", "janus_audio_deployed", "janus_deployed", "livekit_deployed", "ll_hls_deployed"),
        # The pages' own examples, a user's own images, the wheel, and each verb's colours.
        *("extending", "own_deployed", "terminal", "wheel"),
        # Containers that differ from another platform's in their settings alone, and what takes their place in tests.
        *("platforms_containers[docker-unconfined]", "platforms_containers[lxc-lxcfs]"),
        *("platforms_containers[oci-crun-users]", "platforms_containers[openvz-profile]"),
        "platforms_containers[gvisor-systrap]",
        *("platforms_containers[podman-runc-users]", "platform_openvz_deployed", "platform_proxmox_ct_deployed"),
        "arms_apart::test_only_who_publishes_ports_has_rules_and_tracks_connections",
        # Each container in each network mode: `networks` has the modes.
        "platforms_containers::test_in_every_mode_it_is_reached_and_root_finds_no_monitor",
        # An emulated machine boots for seconds: one does in `make test`, and keeps the contract.
        *("audit_deployed[qemu-tcg]", "empty_image[qemu-tcg]", "image_deployed[qemu-tcg]", "slices[qemu-tcg]"),
        "platforms_microvm::test_the_guest_boots_on_devices_such_as_the_monitors_without_them",
        "platforms_vms::test_instances_live_side_by_side[qemu-tcg]",
        "platforms_vms::test_is_reached_in_every_mode_and_starts_from_the_image[qemu-tcg]",
        "platforms_vms::test_what_a_guest_prints_is_bounded_and_it_leaves_nothing[qemu-tcg]",
        "platforms_vms::test_with_the_budget_of_vcpus_helpers_leave_the_instances_cpus_and_a_panic_is_told[qemu-tcg]",
        "probe_density::test_boot_idle_and_density[qemu-tcg]",
        "probe_flow::test_flows_and_pings_over_channels[uml]",
        "qemu_settings::test_a_guest_on_another_machine_keeps_the_contract_and_ends_when_it_resets",
        # Ends at many moments, one after another.
        "host::test_a_host_that_is_lost_before_there_is_a_plan_leaves_nothing",
        "host::test_a_host_that_is_lost_in_a_trial_fails_it_and_the_trial_comes_again",
        *("interrupted", "slices::test_nothing_is_left_by_an_end_at_any_moment"),
        "namespaces::test_labs_that_begin_while_others_end_do_not_take_the_mount_from_each_other",
        "probe_fork_bomb::test_nothing_is_left_of_a_bomb_that_was_interrupted",
        "slices::test_each_slice_comes_to_its_own_limit_of_processes_and_lives_on[uml]",
        # Those of rust/ again.
        "rust::test_it_holds_where_loopback_delivers_a_moment_later",
        # How often intervals and rules err, over thousands of simulated runs.
        "analysis_hosts::test_hosts_that_are_alike_are_seldom_called_different",
        "analysis_hosts::test_many_hosts_of_few_blocks_that_are_alike_are_seldom_called_different",
        "analysis_hosts::test_with_few_hosts_the_interval_covers_the_mean_of_these",
        "analysis_rules::test_it_is_each_probe_that_errs_in_five_of_a_hundred_runs_and_not_some_of_twenty",
        "analysis_rules::test_a_large_table_has_bounds_at_its_last_looks",
        "analysis_statistics::test_a_condition_that_few_blocks_hold_leaves_intervals_true",
        "analysis_statistics::test_a_noisy_condition_that_few_blocks_hold_is_known_by_these",
        "analysis_statistics::test_missing_trials_leave_intervals_over_conditions_true",
        "analysis_stopping::test_more_comparisons_have_no_narrower_bounds",
        "both_natives::test_equal_arms_raise_no_more_alarms",
        "calibration::test_known_costs_are_recovered",
        "components::test_known_components_are_found_on_average",
        "components::test_what_is_foretold_comes",
        "deciding::test_over_all_looks_at_most_one_table_in_twenty_errs",
        "study_own::test_a_study_json_that_was_changed_is_refused_or_a_study",
    ]
)


def is_long(nodeid: str) -> bool:
    """Whether the test of this name (``tests/test_FILE.py::TEST[CASE]``), its case or its file is among them."""
    path, _, test = nodeid.partition("::")
    file = path.rpartition("/test_")[2].removesuffix(".py")
    name, _, case = test.removesuffix("]").partition("[")
    return not LONG.isdisjoint((file, f"{file}::{name}", f"{file}[{case}]", f"{file}::{name}[{case}]"))
