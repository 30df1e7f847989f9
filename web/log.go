package web

import (
	"context"
	"io"

	"github.com/a-h/templ"
)

// LogMore is a stretch of a log and, when it is to be followed, what fetches it and is replaced by it. Every
// byte counts in a log, so it is written by hand: a template would put spaces around.
func LogMore(p Page, id, stream string, c LogChunk, follow bool) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		end := ""
		switch {
		case !follow:
		case c.EOF && c.Ended:
			end = "<span class=\"muted\">— the end —</span>"
		default:
			address := p.To("/tasks/"+Escape(id)+"/log", "stream", stream, "offset", itoa(c.Next))
			end = `<span hx-get="` + templ.EscapeString(address) + `" hx-trigger="every 2s" hx-swap="outerHTML" hx-target="this"></span>`
		}
		_, err := io.WriteString(w, templ.EscapeString(c.Text)+end)
		return err
	})
}
