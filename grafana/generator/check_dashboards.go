package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/grafana/dashboard-linter/lint"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// committed are the dashboards as they stand in the repository.
func committed() (map[string]dashboard.Dashboard, []error) {
	found, errors := map[string]dashboard.Dashboard{}, []error(nil)
	for _, path := range glob(dashboardsAt, "*.json") {
		text, err := os.ReadFile(path)
		var one dashboard.Dashboard
		if err == nil {
			err = one.UnmarshalJSONStrict(text)
		}
		if err == nil {
			err = one.Validate()
		}
		if err != nil {
			errors = append(errors, fmt.Errorf("%s: %w", path, err))
			continue
		}
		found[filepath.Base(path)] = one
	}
	return found, errors
}

// decodeStrictly: an option that Grafana does not know is a typing error.
func decodeStrictly() []error {
	found, errors := committed()
	for name, one := range found {
		if one.SchemaVersion != 42 {
			errors = append(errors, fmt.Errorf("%s is of schema version %d", name, one.SchemaVersion))
		}
		for _, asked := range queriesOf(one) {
			if _, unknown := asked.(variants.UnknownDataquery); unknown {
				errors = append(errors, fmt.Errorf("%s has a query of an unknown kind: %v", name, asked))
			}
		}
	}
	return errors
}

func passLinter() []error {
	var errors []error
	config := lint.NewConfigurationFile()
	if err := config.Load(filepath.Join(dashboardsAt, ".lint")); err != nil {
		return []error{err}
	}
	for rule, entries := range config.Exclusions {
		if entries == nil || entries.Reason == "" {
			errors = append(errors, fmt.Errorf(".lint excludes %s without a reason", rule))
		}
	}
	rules := lint.NewRuleSet()
	for _, path := range glob(dashboardsAt, "*.json") {
		text, err := os.ReadFile(path)
		if err != nil {
			return []error{err}
		}
		linted, err := lint.NewDashboard(text)
		if err != nil {
			return []error{err}
		}
		results, err := rules.Lint([]lint.Dashboard{linted})
		if err != nil {
			return []error{err}
		}
		results.Configure(config)
		for rule, seen := range results.ByRule() {
			for _, context := range seen {
				for _, result := range context.Result.Results {
					if result.Severity >= lint.Warning && result.Severity != lint.Quiet {
						errors = append(errors, fmt.Errorf("%s: %s", rule, result.Message))
					}
				}
			}
		}
	}
	return errors
}

func panelsAreWhole() []error {
	// What does not decode is told by another check.
	found, _ := committed()
	var errors []error
	for name, one := range found {
		tell := func(title, what string, of ...any) {
			errors = append(errors, fmt.Errorf("%s, panel %q: %s", name, title, fmt.Sprintf(what, of...)))
		}
		taken, ids := map[[2]uint32]string{}, map[uint32]bool{}
		for _, either := range one.Panels {
			title, id, at := "", uint32(0), (*dashboard.GridPos)(nil)
			if either.RowPanel != nil {
				title, id, at = *either.RowPanel.Title, either.RowPanel.Id, either.RowPanel.GridPos
			} else {
				title, id, at = *either.Panel.Title, *either.Panel.Id, either.Panel.GridPos
				panelIsWhole(*either.Panel, func(what string, of ...any) { tell(title, what, of...) })
				if name == "overview.json" && !leadsToDetail(*either.Panel) {
					tell(title, "does not lead to Stream detail with the variables kept")
				}
			}
			if ids[id] {
				tell(title, "has the id %d of another one", id)
			}
			ids[id] = true
			if at.X+at.W > 24 || at.W == 0 || at.H == 0 {
				tell(title, "is not within the grid: %+v", *at)
			}
			for x := at.X; x < at.X+at.W; x++ {
				for y := at.Y; y < at.Y+at.H; y++ {
					if other, there := taken[[2]uint32{x, y}]; there {
						tell(title, "lies over %q", other)
					}
					taken[[2]uint32{x, y}] = title
				}
			}
		}
	}
	return unique(errors)
}

func panelIsWhole(p dashboard.Panel, tell func(string, ...any)) {
	defaults := p.FieldConfig.Defaults
	if p.Description == nil || len(*p.Description) < 20 {
		tell("has no description that helps anybody")
	}
	if defaults.Unit == nil || *defaults.Unit == "" {
		tell("has no unit")
	}
	if len(p.Targets) == 0 {
		tell("asks nothing")
	}
	for _, asked := range p.Targets {
		if asked.DataqueryType() == "unknown" {
			tell("asks in a way that is not known")
		}
	}
	// A big figure without a colour says nothing to a person who has just been woken.
	if p.Type == "stat" && (defaults.Thresholds == nil || len(defaults.Thresholds.Steps) < 2) {
		tell("has no thresholds")
	}
	if defaults.Thresholds == nil || len(defaults.Thresholds.Steps) == 0 {
		tell("has no colour to begin with")
		return
	}
	var before *float64
	for index, step := range defaults.Thresholds.Steps {
		if (step.Value == nil) != (index == 0) || before != nil && step.Value != nil && *step.Value <= *before {
			tell("has thresholds that do not rise")
		}
		before = step.Value
	}
}

func leadsToDetail(p dashboard.Panel) bool {
	for _, link := range p.Links {
		if link.Url != nil && strings.HasPrefix(*link.Url, "/d/"+streamUID+"?") &&
			strings.Contains(*link.Url, "${__all_variables}") && strings.Contains(*link.Url, "${__url_time_range}") {
			return true
		}
	}
	return false
}

// queriesOf gives those of the panels and of the annotations.
func queriesOf(one dashboard.Dashboard) []variants.Dataquery {
	var asked []variants.Dataquery
	for _, either := range one.Panels {
		if either.Panel != nil {
			asked = append(asked, either.Panel.Targets...)
		}
	}
	for _, annotation := range one.Annotations.List {
		asked = append(asked, annotation.Target)
	}
	return asked
}

// promQLOf gives every expression of a dashboard, those in its variables, too.
func promQLOf(one dashboard.Dashboard) []string {
	var expressions []string
	for _, asked := range queriesOf(one) {
		switch query := asked.(type) {
		case *prometheus.Dataquery:
			expressions = append(expressions, query.Expr)
		case prometheus.Dataquery:
			expressions = append(expressions, query.Expr)
		}
	}
	for _, variable := range one.Templating.List {
		if variable.Query == nil || variable.Query.String == nil {
			continue
		}
		if inner, is := strings.CutPrefix(*variable.Query.String, "label_values("); is {
			// The last comma: a selector may have its own.
			expressions = append(expressions, inner[:strings.LastIndex(inner, ",")])
		}
	}
	return expressions
}

func unique(errors []error) []error {
	seen, kept := map[string]bool{}, []error(nil)
	for _, err := range errors {
		if !seen[err.Error()] {
			kept = append(kept, err)
		}
		seen[err.Error()] = true
	}
	return kept
}
