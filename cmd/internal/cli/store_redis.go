package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/redishold"
)

// Redis URLs:
//
//	redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB]
//	redis[s]+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]…/PRIMARY[/DB]
//	redis[s]+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT]…
//
// rediss means TLS. A password may hold any sign: the last @ before the query ends it, and percent escapes are taken back
// where they are valid. The query may have: password_file, sentinel_user, sentinel_password_file (files with the secret
// in the first line), ca (a file of certificates), plain_keys=true, replicas=N. What is in no file is taken from
// $HOLDLOCK_REDIS_PASSWORD and $HOLDLOCK_SENTINEL_PASSWORD.
//
// Errors name parts of a URL, and never a user, a password, or anything that could be one.

func isRedis(scheme string) bool {
	kind, _, _ := strings.Cut(scheme, "+")
	rest := strings.TrimPrefix(scheme, kind)
	return (kind == "redis" || kind == "rediss") && (rest == "" || rest == "+sentinel" || rest == "+cluster")
}

// redisURL is what such a URL says.
type redisURL struct {
	kind             string // "", sentinel or cluster
	hosts            []string
	primary          string
	db               int
	user, password   string
	sentinelUser     string
	sentinelPassword string
	tls              *tls.Config
	plainKeys        bool
	replicas         int
}

func openRedis(scheme, rest, namespace string, timeout time.Duration) (driver.Driver, error) {
	u, err := parseRedis(scheme, rest, os.Getenv)
	if err != nil {
		return nil, usage("--store " + scheme + ": " + err.Error())
	}
	redis.SetLogger(silent{}) // what matters comes back as an error
	c := u.client(timeout)
	opts := &redishold.Options{
		Namespace: namespace, PlainKeys: u.plainKeys, Replicas: u.replicas, Location: u.location(scheme, namespace),
	}
	if u.kind == "sentinel" {
		opts.Sentinel = &redishold.SentinelOptions{
			Primary: u.primary, Addrs: u.hosts, Username: u.sentinelUser, Password: u.sentinelPassword, TLSConfig: u.tls,
		}
	}
	d, err := redishold.NewDriver(c, opts)
	if err != nil {
		_ = c.Close()
		return nil, usage(err.Error())
	}
	return &redisStore{d, c}, nil
}

// redisStore closes the connections that openRedis has made.
type redisStore struct {
	*redishold.Driver
	client redis.UniversalClient
}

// Close implements driver.Driver.
func (s *redisStore) Close() error { return errors.Join(s.Driver.Close(), s.client.Close()) }

type silent struct{}

// Printf drops a message of the Redis client.
func (silent) Printf(context.Context, string, ...any) {}

func parseRedis(scheme, rest string, getenv func(string) string) (*redisURL, error) {
	secure, kind, _ := strings.Cut(scheme, "+")
	u := &redisURL{kind: kind}
	rest, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return nil, errors.New("write it as " + scheme + "://HOST")
	}
	var login string
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		login, rest = rest[:at], rest[at+1:]
	}
	rest, query, _ := strings.Cut(rest, "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return nil, errors.New("the part behind ? is not valid")
	}
	hosts, path, _ := strings.Cut(rest, "/")
	if err := u.where(hosts, path); err != nil {
		return nil, err
	}
	if user, password, ok := strings.Cut(login, ":"); ok {
		u.user, u.password = unescape(user), unescape(password)
	} else {
		u.user = unescape(login)
	}
	if err := u.options(options, getenv); err != nil {
		return nil, err
	}
	if secure == "rediss" {
		u.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		if ca := options.Get("ca"); ca != "" {
			if u.tls.RootCAs, err = readCA(ca); err != nil {
				return nil, err
			}
		}
	}
	return u, nil
}

// where takes the hosts and the path.
func (u *redisURL) where(hosts, path string) (err error) {
	port := "6379"
	if u.kind == "sentinel" {
		port = "26379"
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" {
			return errors.New("a host is missing")
		}
		if strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return errors.New("a host holds a space or a control character")
		}
		if _, number, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), port)
		} else if n, err := strconv.ParseUint(number, 10, 16); err != nil || n == 0 {
			if host == "redis:" || host == "rediss:" {
				return errors.New("the servers of a quorum are parted by spaces, not by commas")
			}
			return errors.New("the port of a host is not a number from 1 to 65535")
		}
		u.hosts = append(u.hosts, host)
	}
	parts := strings.Split(path, "/")
	switch u.kind {
	case "":
		if len(u.hosts) > 1 {
			return errors.New("it is for one server; for several see redis+sentinel and redis+cluster")
		}
	case "sentinel":
		if u.primary = unescape(parts[0]); u.primary == "" {
			return errors.New("the name of the primary is missing: write HOST,HOST/PRIMARY")
		}
		parts = parts[1:]
	case "cluster":
		if path != "" {
			return errors.New("a Cluster has no database numbers")
		}
	}
	if len(parts) > 1 {
		return errors.New("the path has too many parts")
	}
	if len(parts) == 1 && parts[0] != "" {
		if u.db, err = strconv.Atoi(parts[0]); err != nil || u.db < 0 {
			return errors.New("the database in the path is not a number")
		}
	}
	return nil
}

// options takes the query and the environment.
func (u *redisURL) options(q url.Values, getenv func(string) string) (err error) {
	for name := range q {
		switch name {
		case "password_file", "sentinel_user", "sentinel_password_file", "ca", "plain_keys", "replicas":
		default:
			return errors.New("the part behind ? has an unknown option; known: password_file, sentinel_user, " +
				"sentinel_password_file, ca, plain_keys, replicas")
		}
	}
	secret := func(file, env string) (string, error) {
		if file == "" {
			return getenv(env), nil
		}
		b, err := os.ReadFile(file)
		line, _, _ := strings.Cut(string(b), "\n")
		return strings.TrimSuffix(line, "\r"), err
	}
	if u.password == "" {
		if u.password, err = secret(q.Get("password_file"), "HOLDLOCK_REDIS_PASSWORD"); err != nil {
			return fmt.Errorf("password_file: %w", err)
		}
	}
	if u.sentinelPassword, err = secret(q.Get("sentinel_password_file"), "HOLDLOCK_SENTINEL_PASSWORD"); err != nil {
		return fmt.Errorf("sentinel_password_file: %w", err)
	}
	u.sentinelUser = q.Get("sentinel_user")
	if s := q.Get("plain_keys"); s != "" {
		if u.plainKeys, err = strconv.ParseBool(s); err != nil {
			return errors.New("plain_keys is neither true nor false")
		}
	}
	if s := q.Get("replicas"); s != "" {
		if u.replicas, err = strconv.Atoi(s); err != nil || u.replicas < 0 {
			return errors.New("replicas is not a number")
		}
	}
	return nil
}

// unescape takes back percent escapes. What is no escape stands for itself, so a raw password works too.
func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

func readCA(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca: %s holds no certificate", file)
	}
	return pool, nil
}

// client makes a Redis client as locks want it: it honours contexts, does not retry on its own, and does nothing that
// the documented rights do not allow. timeout is for one call, also where no context bounds it.
func (u *redisURL) client(timeout time.Duration) redis.UniversalClient {
	const pool, noRetries = 8, -1
	dial := min(3*time.Second, timeout)
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // only Redis Enterprise has them
	switch u.kind {
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: u.primary, SentinelAddrs: u.hosts, DB: u.db,
			SentinelUsername: u.sentinelUser, SentinelPassword: u.sentinelPassword,
			Username: u.user, Password: u.password, TLSConfig: u.tls, Dialer: redisDialer(dial, u.tls),
			ContextTimeoutEnabled: true, MaxRetries: noRetries, DialTimeout: dial, ReadTimeout: timeout, PoolSize: pool, DisableIdentity: true,
		})
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: u.hosts, Username: u.user, Password: u.password, TLSConfig: u.tls, Dialer: redisDialer(dial, u.tls),
			ContextTimeoutEnabled: true, DialTimeout: dial, ReadTimeout: timeout, PoolSize: pool, DisableIdentity: true,
			MaintNotificationsConfig: quiet,
		})
	default:
		return redis.NewClient(&redis.Options{
			Addr: u.hosts[0], DB: u.db, Username: u.user, Password: u.password, TLSConfig: u.tls, Dialer: redisDialer(dial, u.tls),
			ContextTimeoutEnabled: true, MaxRetries: noRetries, DialerRetries: 1, DialTimeout: dial, ReadTimeout: timeout, PoolSize: pool,
			DisableIdentity: true, MaintNotificationsConfig: quiet,
		})
	}
}

// location names everything that decides whether two programs exclude each other, and no secrets.
func (u *redisURL) location(scheme, namespace string) string {
	where := scheme + "://" + strings.Join(u.hosts, ",")
	if u.primary != "" {
		where += "/" + u.primary
	}
	if u.kind != "cluster" {
		where += "/" + strconv.Itoa(u.db)
	}
	switch {
	case u.plainKeys:
		return where + ", plain keys"
	case namespace == "":
		return where + ", namespace holdlock"
	default:
		return where + ", namespace " + namespace
	}
}
