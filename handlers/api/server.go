package api

import "context"

// Server is this server, and the Ray cluster whose agents it runs.
type Server struct {
	Version       string `json:"version" doc:"Of the server: a release, or the commit it was built from." example:"0.1.0"`
	Deployment    string `json:"deployment" doc:"The id of the database behind it: servers that share it have the same." example:"8f14e45f-ceea-467f-a0e6-3b1a4d5c6e7f"`
	RayAddress    string `json:"ray_address" doc:"Host and port of the Ray cluster's head as Ray knows it; empty until the sidecar is connected, and on a server that leaves the agents to another." example:"10.0.0.4:6379"`
	RayVersion    string `json:"ray_version" doc:"Of the sidecar; empty like ray_address." example:"2.60.0"`
	PythonVersion string `json:"python_version" doc:"Of the sidecar; empty like ray_address." example:"3.11.7"`
	URL           string `json:"url" doc:"Where it listens." example:"http://127.0.0.1:8080"`
}

func (a *API) registerServer() {
	register(a, operation{id: "read-server", method: "GET", path: "/server", tag: "Server",
		summary: "Read what this server is", about: "Its version and deployment, and the Ray cluster it is connected to: what a client compares with its own before it sends pickled code.",
	}, func(ctx context.Context, _ *struct{}) (*Doc[Server], error) {
		return doc(a.server(ctx))
	})
}
