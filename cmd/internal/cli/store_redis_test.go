package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdlock/holdlock/driver"
)

func TestRedisURL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("from file\nrest"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) string { return map[string]string{"HOLDLOCK_REDIS_PASSWORD": "from env"}[name] }
	for url, want := range map[string]redisURL{
		"redis://h":                         {hosts: []string{"h:6379"}, password: "from env"},
		"redis://h:1/3":                     {hosts: []string{"h:1"}, db: 3, password: "from env"},
		"redis://[::1]/3":                   {hosts: []string{"[::1]:6379"}, db: 3, password: "from env"},
		"redis://u:p@h":                     {hosts: []string{"h:6379"}, user: "u", password: "p"},
		"redis://:p@h":                      {hosts: []string{"h:6379"}, password: "p"},
		"redis://u@h?password_file=" + file: {hosts: []string{"h:6379"}, user: "u", password: "from file"},
		"redis://u:a@b:c/d?e#f%g%41@h:1/2":  {hosts: []string{"h:1"}, db: 2, user: "u", password: "a@b:c/d?e#f%g%41"},
		"redis://u:a%40b%2Fc%3F@h:1/2":      {hosts: []string{"h:1"}, db: 2, user: "u", password: "a@b/c?"},
		"redis+sentinel://u:p@a,b:7/main/4": {kind: "sentinel", hosts: []string{"a:26379", "b:7"}, primary: "main", db: 4, user: "u", password: "p"},
		"redis+sentinel://a/main?sentinel_user=s&sentinel_password_file=" + file: {
			kind: "sentinel", hosts: []string{"a:26379"}, primary: "main", password: "from env",
			sentinelUser: "s", sentinelPassword: "from file",
		},
		"redis+cluster://:p@a,b:7":             {kind: "cluster", hosts: []string{"a:6379", "b:7"}, password: "p"},
		"redis://:p@h?plain_keys=1&replicas=2": {hosts: []string{"h:6379"}, password: "p", plainKeys: true, replicas: 2},
	} {
		scheme, rest, _ := strings.Cut(url, ":")
		got, err := parseRedis(scheme, rest, env)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		same := slices.Equal(got.hosts, want.hosts)
		g, w := *got, want
		g.hosts, w.hosts = nil, nil
		if !same || g.kind != w.kind || g.primary != w.primary || g.db != w.db || g.user != w.user || g.password != w.password ||
			g.sentinelUser != w.sentinelUser || g.sentinelPassword != w.sentinelPassword || g.plainKeys != w.plainKeys || g.replicas != w.replicas {
			t.Errorf("%s: %+v, want %+v", url, got, want)
		}
		if loc := got.location(scheme, ""); strings.Contains(loc, got.password) && got.password != "p" {
			t.Errorf("%s: the location shows the password: %s", url, loc)
		}
	}
}

func TestRedisURLErrorsHideSecrets(t *testing.T) {
	const secret = "hunter2"
	for _, url := range []string{
		"redis://u:" + secret + "@", "redis://u:" + secret + "@h/x", "redis://u:" + secret + "@h/1/2",
		"redis://u:" + secret + "@a,b", "redis://u:" + secret + "@h?x=y", "redis:u:" + secret + "@h",
		"redis+sentinel://u:" + secret + "@h", "redis+cluster://u:" + secret + "@h/1", "redis+ring://u:" + secret + "@h",
		"rediss://u:" + secret + "@h?ca=/nowhere", "redis://u@h?password_file=/nowhere", "redis://u:" + secret + "@h?replicas=x",
	} {
		_, err := openStore(url, "")
		if err == nil {
			t.Errorf("%s: no error", url)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	if _, err := openStore("redis://a:6379,redis://b:6379,redis://c:6379", ""); err == nil || !strings.Contains(err.Error(), "parted by spaces") {
		t.Errorf("a quorum with commas: %v", err)
	}
	if _, err := openStore("redis://h", "not allowed here{}"); err == nil {
		t.Error("a bad namespace is accepted")
	}
}

func TestRedisStoreHasAllAbilities(t *testing.T) {
	d, err := openStore("redis://127.0.0.1:1/2", "app")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, waits := driver.As[driver.Waiter](d)
	_, breaks := driver.As[driver.Breaker](d)
	_, lists := driver.As[driver.Lister](d)
	if !waits || !breaks || !lists {
		t.Errorf("waits %v, breaks %v, lists %v", waits, breaks, lists)
	}
	if got := d.Traits().Location; got != "redis://127.0.0.1:1/2, namespace app" {
		t.Errorf("Location = %q", got)
	}
}
