// Package v2 stands in for Grafana's: the dashboards here are classic ones.
package v2

import "errors"

// DashboardVariableRefresh is when a variable asks again.
type DashboardVariableRefresh string

const (
	DashboardVariableRefreshOnTimeRangeChanged DashboardVariableRefresh = "onTimeRangeChanged"
	DashboardVariableRefreshOnDashboardLoad    DashboardVariableRefresh = "onDashboardLoad"
)

type (
	// DashboardSpec and the rest are as much of it as the linter names.
	DashboardSpec struct {
		Title       string
		Editable    *bool
		Elements    map[string]DashboardElement
		Variables   []DashboardVariableKind
		Annotations []DashboardAnnotationQueryKind
	}
	DashboardElement   struct{ PanelKind *DashboardPanelKind }
	DashboardPanelKind struct{ Spec DashboardPanelSpec }
	DashboardPanelSpec struct {
		Id                 float64
		Title, Description string
		VizConfig          struct {
			Group string
			Spec  struct{ FieldConfig, Options any }
		}
		Data struct {
			Spec struct{ Queries []DashboardPanelQueryKind }
		}
	}
	DashboardPanelQueryKind struct {
		Spec struct {
			RefId  string
			Hidden bool
			Query  DashboardDataQueryKind
		}
	}
	DashboardDataQueryKind struct {
		Group      string
		Datasource *struct{ Name *string }
		Spec       map[string]any
	}
	DashboardAnnotationQueryKind struct {
		Spec struct {
			Name  string
			Query DashboardDataQueryKind
		}
	}
	// Variable is every kind of variable at once.
	Variable struct {
		Spec struct {
			Name            string
			Label, AllValue *string
			Multi           bool
			Refresh         DashboardVariableRefresh
			PluginId        string
		}
	}
	QueryVariable struct {
		Spec struct {
			Name            string
			Label, AllValue *string
			Multi           bool
			Refresh         DashboardVariableRefresh
			Query           DashboardDataQueryKind
		}
	}
	TextVariable struct {
		Spec struct {
			Name            string
			Label, AllValue *string
			Multi           bool
			Query           string
		}
	}
	DashboardVariableKind struct {
		QueryVariableKind                                              *QueryVariable
		DatasourceVariableKind, AdhocVariableKind, GroupByVariableKind *Variable
		SwitchVariableKind                                             *Variable
		CustomVariableKind, IntervalVariableKind, ConstantVariableKind *TextVariable
		TextVariableKind                                               *TextVariable
	}
)

// UnmarshalJSON refuses: a dashboard of the new layout must not pass unseen.
func (*DashboardSpec) UnmarshalJSON([]byte) error {
	return errors.New("our dashboards are classic ones, schemaVersion 42")
}
