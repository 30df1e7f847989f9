package auth

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// allowList is the set of Host headers to answer. Against DNS rebinding only
// names matter: a browser that was tricked sends the attacker's name.
type allowList struct {
	names  map[string]bool // "name" or "name:port", lower case
	anyIP  bool            // listening on every interface: any literal address is one of ours, or forwarded to us
	listen string
}

func newAllowList(addr string, hosts []string) (allowList, error) {
	l := allowList{names: map[string]bool{}, listen: addr}
	if addr != "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return l, fmt.Errorf("listening address %q: %w", addr, err)
		}
		ip, err := netip.ParseAddr(host)
		l.anyIP = host == "" || err == nil && ip.IsUnspecified()
		if !l.anyIP {
			l.names[canonical(host)] = true
		}
	}
	for _, h := range hosts {
		if h = strings.TrimSpace(h); h == "" {
			continue
		}
		if strings.ContainsAny(h, "/*@ ") {
			return l, fmt.Errorf("allowed host %q: want a host name such as mesh.example.com, without scheme, path or wildcard", h)
		}
		if host, port, err := net.SplitHostPort(h); err == nil {
			l.names[canonical(host)+":"+port] = true
		} else {
			l.names[canonical(strings.Trim(h, "[]"))] = true
		}
	}
	return l, nil
}

func canonical(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

func (l allowList) allows(r *http.Request) bool {
	host, port := splitHost(r.Host)
	if host == "" {
		return false
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") || l.names[host] || l.names[host+":"+port] {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	return ip.IsLoopback() || l.anyIP
}

// splitHost reads a Host header; a broken one has no host.
func splitHost(hostport string) (host, port string) {
	if h, p, err := net.SplitHostPort(hostport); err == nil {
		return canonical(h), p
	}
	if strings.HasPrefix(hostport, "[") && strings.HasSuffix(hostport, "]") {
		hostport = hostport[1 : len(hostport)-1]
	} else if strings.ContainsAny(hostport, ":[]") {
		return "", ""
	}
	return canonical(hostport), ""
}

func (l allowList) suggestion() string {
	if _, port, err := net.SplitHostPort(l.listen); err == nil && port != "" && port != "0" {
		return "localhost:" + port
	}
	return "localhost"
}
