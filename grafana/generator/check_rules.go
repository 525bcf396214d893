package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"
)

var (
	rulesAt    = filepath.Join(root, "grafana", "rules", "postonce.yml")
	testsAt    = filepath.Join(root, "grafana", "rules", "postonce_test.yml")
	runbooksAt = filepath.Join(root, "docs", "runbooks")
)

// What every runbook says, in this order.
var chapters = []string{
	"## What it means for the money", "## How to see it", "## What to do", "## How to know that it is over",
}

type rule struct {
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func newParser() parser.Parser { return parser.NewParser(parser.Options{}) }

func readRules() ([]rule, error) {
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := readYAML(rulesAt, &file); err != nil {
		return nil, err
	}
	var all []rule
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all, nil
}

func readYAML(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func promtoolPasses() []error {
	var errors []error
	for _, args := range [][]string{
		{"check", "rules", rulesAt},
		{"test", "rules", testsAt},
		// Where the files stand in the container is not where they stand here.
		{"check", "config", "--syntax-only", filepath.Join(root, "grafana", "prometheus.yml")},
	} {
		said, err := exec.Command("promtool", args...).CombinedOutput()
		if err != nil {
			errors = append(errors, fmt.Errorf("promtool %s: %w (./setup.sh test installs it)\n%s", strings.Join(args, " "), err, said))
		}
	}
	return errors
}

func alarmsAreWhole() []error {
	rules, err := readRules()
	if err != nil {
		return []error{err}
	}
	fires, silent, err := tested()
	if err != nil {
		return []error{err}
	}
	var errors []error
	alarms := map[string]bool{}
	for _, one := range rules {
		if one.Alert == "" {
			continue
		}
		alarms[one.Alert] = true
		for _, wrong := range wrongWith(one, fires, silent) {
			errors = append(errors, fmt.Errorf("%s: %s", one.Alert, wrong))
		}
	}
	for _, path := range glob(runbooksAt, "*.md") {
		if name := strings.TrimSuffix(filepath.Base(path), ".md"); !alarms[name] {
			errors = append(errors, fmt.Errorf("%s is of no alarm", path))
		}
	}
	return errors
}

func wrongWith(one rule, fires, silent map[string]bool) []string {
	var wrong []string
	if severity := one.Labels["severity"]; severity != "page" && severity != "ticket" {
		wrong = append(wrong, "its severity is neither page nor ticket")
	}
	if len(one.Annotations["summary"]) < 40 {
		wrong = append(wrong, "it does not say what it means for the money")
	}
	if !fires[one.Alert] {
		wrong = append(wrong, "no test makes it fire")
	}
	if !silent[one.Alert] {
		wrong = append(wrong, "no test keeps it silent")
	}
	page := filepath.Join(runbooksAt, one.Alert+".md")
	if one.Annotations["runbook_url"] != "docs/runbooks/"+one.Alert+".md" || !exists(page) {
		return append(wrong, "its runbook is not docs/runbooks/"+one.Alert+".md")
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return append(wrong, err.Error())
	}
	rest := string(text)
	for _, chapter := range chapters {
		_, after, found := strings.Cut(rest, chapter+"\n")
		if !found {
			wrong = append(wrong, "its runbook lacks, in its place: "+chapter)
			continue
		}
		rest = after
	}
	return append(wrong, brokenLinks(page, string(text))...)
}

// brokenLinks finds links to files that are not there, and to headings that recovery.md lacks.
func brokenLinks(page, text string) []string {
	var broken []string
	for _, part := range strings.Split(text, "](")[1:] {
		target, _, _ := strings.Cut(part, ")")
		file, heading, _ := strings.Cut(target, "#")
		path := filepath.Join(filepath.Dir(page), file)
		linked, err := os.ReadFile(path)
		if err != nil {
			broken = append(broken, "a link leads nowhere: "+target)
		} else if heading != "" && !hasHeading(string(linked), heading) {
			broken = append(broken, "a link leads to no heading: "+target)
		}
	}
	return broken
}

func hasHeading(text, anchor string) bool {
	for _, line := range strings.Split(text, "\n") {
		title, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !is || !strings.HasPrefix(line, "#") {
			continue
		}
		made := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case strings.ContainsRune("`:,.()'\"", r):
				return -1
			}
			return r
		}, strings.ToLower(title))
		if made == anchor {
			return true
		}
	}
	return false
}

// tested says which alarms a test expects, and which a test expects not.
func tested() (fires, silent map[string]bool, err error) {
	var file struct {
		Tests []struct {
			Alerts []struct {
				Name     string           `yaml:"alertname"`
				Expected []map[string]any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	err = readYAML(testsAt, &file)
	fires, silent = map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, alert := range test.Alerts {
			if len(alert.Expected) > 0 {
				fires[alert.Name] = true
			} else {
				silent[alert.Name] = true
			}
		}
	}
	return fires, silent, err
}
