package worker_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The cases of supervisor_SUITE of OTP, as of 2025, from its all() and groups().
const otpCases = `
sup_start_normal sup_start_ignore_init sup_start_ignore_child sup_start_ignore_temporary_child
sup_start_ignore_temporary_child_start_child sup_start_ignore_temporary_child_start_child_simple
sup_start_ignore_permanent_child_start_child_simple sup_start_error_return sup_start_fail
sup_start_child_returns_error sup_start_restart_child_returns_error sup_start_child_returns_error_simple
sup_start_map sup_start_map_simple sup_start_map_faulty_specs
sup_stop_infinity sup_stop_timeout sup_stop_timeout_dynamic sup_stop_brutal_kill sup_stop_brutal_kill_dynamic
sup_stop_race sup_stop_non_shutdown_exit_dynamic
child_adm child_adm_simple extra_return child_specs child_specs_map sup_flags multiple_restarts
external_start_no_progress_log permanent_normal transient_normal temporary_normal
permanent_shutdown transient_shutdown temporary_shutdown faulty_application_shutdown
permanent_abnormal transient_abnormal temporary_abnormal
one_for_one one_for_one_escalation one_for_all one_for_all_escalation one_for_all_other_child_fails_restart
simple_one_for_one simple_one_for_one_shutdown simple_one_for_one_extra simple_one_for_one_escalation
simple_one_for_one_corruption simple_one_for_one_restart_ignore
rest_for_one rest_for_one_escalation rest_for_one_other_child_fails_restart
nonsignificant_temporary nonsignificant_transient significant_temporary significant_transient significant_simple
significant_bystander significant_escalation significant_upgrade_never_any significant_upgrade_any_never
significant_upgrade_never_all significant_upgrade_all_never significant_upgrade_any_all significant_upgrade_all_any
significant_upgrade_child
child_unlink tree count_children count_children_supervisor count_restarting_children get_callback_module
do_not_save_start_parameters_for_temporary_children do_not_save_child_specs_for_temporary_children
simple_one_for_one_scale_many_temporary_children temporary_bystander simple_global_supervisor
hanging_restart_loop hanging_restart_loop_rest_for_one hanging_restart_loop_simple
code_change code_change_map code_change_simple code_change_simple_map order_of_children
scale_start_stop_many_children format_log_1 format_log_2 already_started_outside_supervisor
which_children which_children_simple_one_for_one`

var (
	tableRow = regexp.MustCompile(`(?m)^\| ([a-z_0-9]+) \| (held|differs|not applicable) \| (.+) \|$`)
	testName = regexp.MustCompile(`\b(?:Test|Benchmark)[A-Z]\w*`)
)

// docs/internals/otp.md has each case once, with the tests that hold it.
func TestEveryCaseOfOTPIsOnItsPage(t *testing.T) {
	cases, seen := strings.Fields(otpCases), map[string]bool{}
	for _, m := range tableRow.FindAllStringSubmatch(page(t), -1) {
		name, how, why := m[1], m[2], m[3]
		if seen[name] {
			t.Errorf("%s stands there twice", name)
		}
		seen[name] = true
		if !slices.Contains(cases, name) {
			t.Errorf("%s is no case of the suite", name)
		}
		if how != "not applicable" && !testName.MatchString(why) {
			t.Errorf("%s: no test is named", name)
		}
	}
	for _, name := range cases {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// The tests that docs/internals/otp.md names exist.
func TestPageOfOTPNamesTestsThatExist(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	exist := map[string]bool{}
	for _, pattern := range []string{"*_test.go", "../bench/workers/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
				exist[m[1]] = true
			}
		}
	}
	named := testName.FindAllString(page(t), -1)
	if len(named) < 20 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, test := range named {
		if !exist[test] {
			t.Errorf("the page names %s, which does not exist", test)
		}
	}
}

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "internals", "otp.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
