package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// panel is one picture: what it is called, what it says, and what a person must make of it.
type panel struct {
	kind        string // stat, timeseries, stacked, bars, heatmap or table
	title       string
	description string
	unit        string
	width       uint32
	height      uint32
	queries     []query
	// From which value on which colour; the first has none.
	thresholds []dashboard.Threshold
	// Words in the place of numbers.
	words   map[string]word
	decimal *float64
	// What it shows where there is no row.
	empty string
	// In a table: units of columns, by their name.
	columns map[string]string
	log     bool
	// May be below zero.
	signed bool
}

type query struct {
	expr   string
	legend string
	// Of now alone, and not over time.
	instant bool
	sql     string
}

type word struct{ text, color string }

// section is a row of the dashboard: a question, and the panels that answer it.
type section struct {
	title  string
	panels []panel
}

func to[T any](value T) *T { return &value }

func source(kind string) *common.DataSourceRef {
	return &common.DataSourceRef{Type: to(kind), Uid: to("${datasource}")}
}

func thresholds(base string, steps ...dashboard.Threshold) []dashboard.Threshold {
	return append([]dashboard.Threshold{{Color: base}}, steps...)
}

func from(value float64, color string) dashboard.Threshold {
	return dashboard.Threshold{Value: to(value), Color: color}
}

// place puts sections under each other, and panels beside each other as long as they fit.
func place(sections []section, links []dashboard.DashboardLink) []dashboard.PanelOrRowPanel {
	var placed []dashboard.PanelOrRowPanel
	id, y := uint32(1), uint32(0)
	for _, section := range sections {
		placed = append(placed, dashboard.PanelOrRowPanel{RowPanel: &dashboard.RowPanel{
			Type: "row", Id: id, Title: to(section.title), Panels: []dashboard.Panel{},
			GridPos: &dashboard.GridPos{H: 1, W: 24, X: 0, Y: y},
		}})
		id, y = id+1, y+1
		x, tallest := uint32(0), uint32(0)
		for _, one := range section.panels {
			if x+one.width > 24 {
				x, y, tallest = 0, y+tallest, 0
			}
			made := one.build()
			made.Id, made.Links = to(id), links
			made.GridPos = &dashboard.GridPos{H: one.height, W: one.width, X: x, Y: y}
			placed = append(placed, dashboard.PanelOrRowPanel{Panel: &made})
			id, x, tallest = id+1, x+one.width, max(tallest, one.height)
		}
		y += tallest
	}
	return placed
}

func (p panel) build() dashboard.Panel {
	made := dashboard.Panel{
		Type: p.kind, Title: to(p.title), Description: to(p.description),
		Datasource:  source(p.datasource()),
		Targets:     p.targets(),
		FieldConfig: &dashboard.FieldConfigSource{Defaults: p.defaults(), Overrides: p.overrides()},
	}
	switch p.kind {
	case "stat":
		options := stat.NewOptions()
		options.ColorMode = common.BigValueColorModeBackground
		options.GraphMode = common.BigValueGraphModeArea
		options.ReduceOptions = common.ReduceDataOptions{Calcs: []string{"lastNotNull"}}
		options.Orientation = common.VizOrientationAuto
		made.Options = options
	case "timeseries", "stacked", "bars":
		made.Type = "timeseries"
		options := timeseries.NewOptions()
		options.Legend = legend()
		options.Tooltip = common.VizTooltipOptions{Mode: common.TooltipDisplayModeMulti, Sort: common.SortOrderDescending}
		made.Options, made.FieldConfig.Defaults.Custom = options, p.line()
	case "heatmap":
		options := heatmap.NewOptions()
		options.Calculate = to(false)
		options.Color = heatmap.HeatmapColorOptions{
			Mode: to(heatmap.HeatmapColorModeScheme), Scheme: "Oranges", Fill: "dark-orange", Exponent: 0.5, Steps: 64,
		}
		options.YAxis = heatmap.YAxisConfig{Unit: to(p.unit)}
		options.CellValues = &heatmap.CellValues{Unit: to("mps")}
		options.RowsFrame = &heatmap.RowsHeatmapOptions{Layout: to(common.HeatmapCellLayoutAuto)}
		options.Tooltip = heatmap.HeatmapTooltip{Mode: common.TooltipDisplayModeSingle, YHistogram: to(true)}
		made.Options = options
	case "table":
		options := table.NewOptions()
		options.ShowHeader, options.Footer = true, nil
		made.Options, made.FieldConfig.Defaults.Custom = options, table.NewFieldConfig()
	}
	return made
}

func (p panel) datasource() string {
	if p.queries[0].sql != "" {
		return postgresType
	}
	return "prometheus"
}

func (p panel) targets() []variants.Dataquery {
	var targets []variants.Dataquery
	for index, one := range p.queries {
		ref := string(rune('A' + index))
		if one.sql != "" {
			format := "table"
			if p.kind != "table" && p.kind != "stat" {
				format = "time_series"
			}
			targets = append(targets, sqlQuery{
				RefID: ref, Datasource: source(postgresType), EditorMode: "code", Format: format,
				RawQuery: true, RawSQL: one.sql,
			})
			continue
		}
		target := prometheus.Dataquery{
			Expr: one.expr, RefId: to(ref), Datasource: source("prometheus"), LegendFormat: to(one.legend),
			EditorMode: to(prometheus.QueryEditorModeCode), Range: to(!one.instant), Instant: to(one.instant),
		}
		if p.kind == "heatmap" {
			target.Format = to(prometheus.PromQueryFormatHeatmap)
		}
		targets = append(targets, target)
	}
	return targets
}

func (p panel) defaults() dashboard.FieldConfig {
	steps, mode := p.thresholds, dashboard.FieldColorModeIdThresholds
	if p.kind != "stat" {
		mode = dashboard.FieldColorModeIdPaletteClassic
	}
	if steps == nil {
		steps = thresholds("green")
	}
	defaults := dashboard.FieldConfig{
		Unit: to(p.unit), Decimals: p.decimal, Color: &dashboard.FieldColor{Mode: mode},
		Thresholds: &dashboard.ThresholdsConfig{Mode: dashboard.ThresholdsModeAbsolute, Steps: steps},
	}
	if p.kind != "stat" && p.kind != "table" && !p.signed {
		defaults.Min = to(0.0)
	}
	if p.empty != "" {
		defaults.NoValue = to(p.empty)
	}
	if p.words != nil {
		options := map[string]dashboard.ValueMappingResult{}
		for value, told := range p.words {
			options[value] = dashboard.ValueMappingResult{Text: to(told.text), Color: to(told.color)}
		}
		defaults.Mappings = []dashboard.ValueMapping{{
			ValueMap: &dashboard.ValueMap{Type: dashboard.MappingTypeValueToText, Options: options},
		}}
	}
	return defaults
}

func (p panel) overrides() []dashboard.DashboardFieldConfigSourceOverrides {
	overrides := []dashboard.DashboardFieldConfigSourceOverrides{}
	for _, name := range sortedKeys(p.columns) {
		overrides = append(overrides, dashboard.DashboardFieldConfigSourceOverrides{
			Matcher:    dashboard.MatcherConfig{Id: "byName", Options: name},
			Properties: []dashboard.DynamicConfigValue{{Id: "unit", Value: p.columns[name]}},
		})
	}
	return overrides
}

func (p panel) line() *timeseries.FieldConfig {
	line := timeseries.NewFieldConfig()
	line.ShowPoints = to(common.VisibilityModeNever)
	line.FillOpacity = to(10.0)
	style := common.GraphThresholdsStyleModeOff
	if p.thresholds != nil {
		style = common.GraphThresholdsStyleModeDashed
	}
	line.ThresholdsStyle = &common.GraphThresholdsStyleConfig{Mode: style}
	if p.kind != "timeseries" {
		line.FillOpacity = to(60.0)
		line.Stacking = &common.StackingConfig{Mode: to(common.StackingModeNormal), Group: to("A")}
	}
	if p.kind == "bars" {
		line.DrawStyle = to(common.GraphDrawStyleBars)
	}
	if p.log {
		line.ScaleDistribution = &common.ScaleDistributionConfig{Type: common.ScaleDistributionLog, Log: to(10.0)}
	}
	return line
}

func legend() common.VizLegendOptions {
	return common.VizLegendOptions{
		DisplayMode: common.LegendDisplayModeTable, Placement: common.LegendPlacementBottom,
		ShowLegend: true, Calcs: []string{"lastNotNull", "max"},
	}
}
