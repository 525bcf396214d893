package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// check does every check that needs neither Grafana nor a run; tests/tests/watch.rs asks the
// panels' queries of a real Prometheus and a real Postgres.
func check() error {
	checks := []struct {
		what string
		do   func() []error
	}{
		{"dashboards are what the generator gives", areGenerated},
		{"dashboards decode strictly as Grafana's own types", decodeStrictly},
		{"dashboard-linter has no errors", passLinter},
		{"panels: no overlap, described, with a unit, thresholds and links", panelsAreWhole},
		{"every PromQL expression parses", expressionsParse},
		{"metrics: every one that is asked for exists, every one that exists is asked for", metricsFit},
		{"promtool: rules, their unit tests, the scrape configuration", promtoolPasses},
		{"each alarm has a runbook and two tests, each runbook an alarm", alarmsAreWhole},
	}
	failed := 0
	for _, one := range checks {
		errors := one.do()
		if len(errors) == 0 {
			fmt.Println("ok     ", one.what)
			continue
		}
		failed++
		fmt.Println("FAILED ", one.what)
		for _, err := range errors {
			fmt.Println("        -", err)
		}
	}
	// The form that is counted as a test run's last line.
	fmt.Printf("%d passed, %d failed\n", len(checks)-failed, failed)
	if failed > 0 {
		return fmt.Errorf("%d of %d checks have failed", failed, len(checks))
	}
	return nil
}

// areGenerated compares byte for byte: nobody edits the JSON, and nobody forgets to write it.
func areGenerated() []error {
	var errors []error
	made := dashboards()
	for name, one := range made {
		expected, err := render(one)
		if err != nil {
			errors = append(errors, fmt.Errorf("%s: %w", name, err))
			continue
		}
		found, err := os.ReadFile(filepath.Join(dashboardsAt, name))
		if err != nil || string(found) != string(expected) {
			errors = append(errors, fmt.Errorf("%s is not what the generator gives: `make dashboards`, and commit it", name))
		}
	}
	for _, path := range glob(dashboardsAt, "*.json") {
		if _, known := made[filepath.Base(path)]; !known {
			errors = append(errors, fmt.Errorf("%s is of no generator", path))
		}
	}
	return errors
}

func glob(parts ...string) []string {
	found, err := filepath.Glob(filepath.Join(parts...))
	if err != nil {
		panic(err) // A pattern of ours that is none.
	}
	return found
}

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeType == 0
}
