package web

import (
	"context"
	"io"

	"github.com/a-h/templ"
)

// LogMore is a stretch of a log and, when more may come, what fetches it and is replaced by it. Every
// byte counts in a log, so it is written by hand: a template would put spaces around.
func LogMore(p Page, id, stream string, c LogChunk) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		end := ""
		switch {
		case !c.EOF && c.Next == c.Offset, !c.EOF && c.Offset == 0 && c.Size > c.Next && c.Text == "":
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
