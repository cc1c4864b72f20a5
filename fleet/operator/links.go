package operator

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/dashboard"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Link leads from the page of a process to another system, such as Grafana or the traces.
type Link struct {
	// Name is what the page shows.
	Name string
	// URL begins with http:// or https://. It may have {service}, {instance}, {host},
	// {version} and {id}. The instance is the id without the service. On Kubernetes the host
	// is the pod. Each is escaped for a query.
	URL string
}

var linkField = regexp.MustCompile(`\{[^}]*\}`)

// check refuses a link that could lead nowhere, or run a script.
func (l Link) check() error {
	u, err := url.Parse(linkField.ReplaceAllString(l.URL, "x"))
	switch {
	case l.Name == "":
		return fmt.Errorf("operator: Links: the link to %q has no Name", l.URL)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("operator: Links: %s leads to %q, want http:// or https:// and a host", l.Name, l.URL)
	}
	for _, field := range linkField.FindAllString(l.URL, -1) {
		if _, ok := fieldsOf(nil)[field]; !ok {
			return fmt.Errorf("operator: Links: %s has %s, want {service}, {instance}, {host}, {version} or {id}", l.Name, field)
		}
	}
	return nil
}

func fieldsOf(p *operatorv1.Process) map[string]string {
	_, instance, ok := strings.Cut(p.GetId(), ".")
	if !ok {
		instance = p.GetId()
	}
	return map[string]string{
		"{service}":  p.GetService(),
		"{instance}": instance,
		"{host}":     p.GetHost(),
		"{version}":  p.GetVersion(),
		"{id}":       p.GetId(),
	}
}

// linksOf returns the links of a process.
func (s *Server) linksOf(p *operatorv1.Process) (list []dashboard.Link) {
	fields := fieldsOf(p)
	escaped := func(field string) string { return url.QueryEscape(fields[field]) }
	for _, l := range s.cfg.Links {
		list = append(list, dashboard.Link{Name: l.Name, URL: linkField.ReplaceAllStringFunc(l.URL, escaped)})
	}
	return list
}
