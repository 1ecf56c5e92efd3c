//go:build unix

package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// tryStore opens a store and takes a lock in it.
func tryStore(t *testing.T, url string) error {
	t.Helper()
	d, err := openStore(url, "")
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = d.Acquire(t.Context(), &driver.AcquireRequest{
		Ref: driver.Ref{Key: "k", Nonce: "0123456789abcdef0123456789abcdef"}, TTL: time.Minute,
	})
	return err
}

const oddPassword = "p@:/?#%41%zz x"

func TestRedisOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key)
	port := testenv.FreePort(t)
	testenv.StartRedis(t, "--tls-port", fmt.Sprint(port), "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", cert, "--tls-auth-clients", "no", "--requirepass", "secret@/")
	url := fmt.Sprintf("rediss://:secret@/@127.0.0.1:%d", port)
	if err := tryStore(t, url+"?ca="+cert); err != nil {
		t.Errorf("with the certificate: %v", err)
	}
	err := tryStore(t, url)
	if err == nil || !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without it: %v, want a refusal", err)
	}
	if err := tryStore(t, strings.Replace(url, "secret", "wrong", 1)+"?ca="+cert); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("with the wrong password: %v", err)
	}
}

func TestRedisOddPassword(t *testing.T) {
	r := testenv.StartRedis(t, "--requirepass", oddPassword)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(oddPassword+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, url := range map[string]string{
		"raw":  "redis://:" + oddPassword + "@" + r.Addr,
		"file": "redis://" + r.Addr + "?password_file=" + file,
	} {
		if err := tryStore(t, url); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	t.Setenv("HOLDLOCK_REDIS_PASSWORD", oddPassword)
	if err := tryStore(t, "redis://"+r.Addr); err != nil {
		t.Errorf("environment: %v", err)
	}
	t.Setenv("HOLDLOCK_REDIS_PASSWORD", "")
	if err := tryStore(t, "redis://"+r.Addr); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without a password: %v", err)
	}
}

// Sentinels have credentials of their own.
func TestRedisSentinelCredentials(t *testing.T) {
	s := testenv.StartSentinel(t)
	for _, r := range s.Servers {
		r.Do(t, "ACL", "SETUSER", "app", "on", ">"+oddPassword, "~*", "&*", "+@all")
	}
	for _, r := range s.Sentinels {
		r.Do(t, "ACL", "SETUSER", "watcher", "on", ">watch@/pw", "+@all", "&*")
		r.Do(t, "ACL", "SETUSER", "default", "-sentinel")
	}
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("watch@/pw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := "redis+sentinel://app:" + oddPassword + "@" + strings.Join(s.Addrs(), ",") + "/" + s.Primary
	if err := tryStore(t, base+"?sentinel_user=watcher&sentinel_password_file="+file); err != nil {
		t.Errorf("with both: %v", err)
	}
	if err := tryStore(t, base); err == nil {
		t.Error("without the credentials of the sentinels: no error")
	}
}

func TestRedisClusterURL(t *testing.T) {
	nodes := testenv.StartCluster(t)
	if err := tryStore(t, "redis+cluster://"+nodes[0].Addr+","+nodes[1].Addr); err != nil {
		t.Error(err)
	}
}

func writeCertificate(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
