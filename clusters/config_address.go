package clusters

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// dashboardPort is where Ray's dashboard listens unless told otherwise.
const dashboardPort = "8265"

// hostName is any name that may be resolved; numbers that are no IP address are names too.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?$`)

// hostPort reads host:port, [IPv6]:port, or, where a port is known without being said, the host alone.
func hostPort(text, usual string) (host, port string, why string) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		bare := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
		switch _, ip := netip.ParseAddr(bare); {
		case strings.Count(text, ":") > 1 && !strings.HasPrefix(text, "["):
			return "", "", fmt.Sprintf("is %.200q; an IPv6 address with its port is written as [::1]:10001", text)
		case usual != "" && (ip == nil || !strings.Contains(text, ":")):
			host, port = bare, usual
		default:
			return "", "", fmt.Sprintf("is %.200q, without a port; write host:port, such as %s:10001", text, text)
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", fmt.Sprintf("has %.100q for a port; it must be a number from 1 to 65535", port)
	}
	addr, err := netip.ParseAddr(host)
	if err == nil && addr.Zone() == "" || hostName.MatchString(host) {
		return host, port, ""
	}
	return "", "", fmt.Sprintf("has %.200q for a host, which is neither a name nor an IP address", host)
}

func (r *specReader) head(v *value) string {
	if v.kind != isText || v.text == "" {
		r.bad(v, "head_address", "must be host:port in quotes, such as \"10.0.0.5:10001\", not %s", v.say())
		return ""
	}
	host, port, why := hostPort(strings.TrimPrefix(v.text, "ray://"), "")
	if strings.Contains(v.text, "://") && !strings.HasPrefix(v.text, "ray://") {
		why = fmt.Sprintf("is %.200q; write host:port without http://, and the dashboard's address as dashboard", v.text)
	}
	if why != "" {
		r.bad(v, "head_address", "%s", why)
		return ""
	}
	return net.JoinHostPort(host, port)
}

func (r *specReader) dashboard(v *value) string {
	if v.kind != isText || v.text == "" {
		r.bad(v, "dashboard", "must be a URL or host:port, such as \"http://10.0.0.5:8265\", not %s", v.say())
		return ""
	}
	if !strings.Contains(v.text, "://") {
		host, port, why := hostPort(v.text, dashboardPort)
		if why != "" {
			r.bad(v, "dashboard", "%s", why)
			return ""
		}
		return "http://" + net.JoinHostPort(host, port)
	}
	u, err := url.Parse(v.text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		r.bad(v, "dashboard", "is %.200q; it must begin with http:// or https:// and name a host", redacted(v.text))
		return ""
	case u.User != nil:
		r.bad(v, "dashboard", "has a user or password in it, which would be kept and shown; use token: {env: NAME} or token: {file: PATH}")
		return ""
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		r.bad(v, "dashboard", "must end before any ? or #")
		return ""
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	if _, _, why := hostPort(net.JoinHostPort(u.Hostname(), port), ""); why != "" {
		r.bad(v, "dashboard", "%s", why)
		return ""
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
	return u.String()
}

// redacted leaves out what may be a password.
func redacted(text string) string {
	if i := strings.LastIndex(text, "@"); i >= 0 {
		return "…" + text[i:]
	}
	return text
}
