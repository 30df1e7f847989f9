package api

import "context"

// Namespace is an isolated set of pools, tasks and policy.
type Namespace struct {
	Name string `json:"name" example:"default"`
}

func (a *API) registerNamespaces() {
	register(a, operation{id: "list-namespaces", method: "GET", path: "/namespaces", tag: "Namespaces",
		summary: "List namespaces", about: "Every namespace in which something was ever made, on one page.",
	}, func(ctx context.Context, _ *struct{}) (*Doc[List[Namespace]], error) {
		names, err := a.ledger.Namespaces(ctx)
		return doc(list(mapped(names, func(n string) Namespace { return Namespace{n} }), ""), err)
	})
}
