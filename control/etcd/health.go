package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Health is what a member says of itself.
type Health struct {
	Endpoint string
	// Err is why it does not answer, or not this user.
	Err     error
	Version string
	// Leads tells whether it knows a leader. Without one it takes no writes.
	Leads bool
	// Size and Quota are of its database in bytes; Quota 0: it does not say.
	Size, Quota int64
	// Alarms are why it takes no writes, such as NOSPACE.
	Alarms []string
	// Date is its time of day, cut to the second, between Sent and Answered; zero: it does not
	// say.
	Date, Sent, Answered time.Time
}

// Health asks each member, within ctx, in the order of the endpoints. Nothing is written.
func (s *Store) Health(ctx context.Context) []Health {
	ctx, cancel := s.within(ctx)
	defer cancel()
	all := make([]Health, len(s.endpoints))
	var asked sync.WaitGroup
	for i, endpoint := range s.endpoints {
		h := &all[i]
		h.Endpoint = endpoint
		asked.Go(func() {
			if h.Err = h.greet(ctx, s.config.TLS); h.Err == nil {
				h.Err = s.health(ctx, h)
			}
		})
	}
	asked.Wait()
	return all
}

func (s *Store) health(ctx context.Context, h *Health) error {
	ctx, cancel := context.WithTimeout(ctx, s.bound)
	defer cancel()
	config := s.config
	config.Endpoints, config.Context = []string{h.Endpoint}, ctx
	c, err := clientv3.New(config)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // nothing was written
	r, err := c.Status(ctx, h.Endpoint)
	if err != nil {
		return err
	}
	h.Version, h.Leads, h.Size, h.Quota, h.Alarms = r.Version, r.Leader != 0, r.DbSize, r.DbSizeQuota, r.Errors
	// Of a member without a leader this is said as an error too.
	h.Alarms = slices.DeleteFunc(h.Alarms, func(text string) bool { return text == "etcdserver: no leader" })
	return nil
}

// greet asks for the version that it tells everybody. gRPC would try until ctx is over, and
// not say why it could not, nor what time it is.
func (h *Health) greet(ctx context.Context, secure *tls.Config) error {
	t := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext}
	client := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Endpoint+"/version", nil)
	if err != nil {
		return err
	}
	h.Sent = time.Now()
	res, err := client.Do(req)
	h.Answered = time.Now()
	if err != nil {
		return err
	}
	_ = res.Body.Close() // what it says is asked for again
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		h.Date = date
	}
	return nil
}

// Refused tells whether an error is that the store is there and does not let the user in, or
// not to the fleet's keys.
func Refused(err error) bool {
	for _, known := range []error{rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrPermissionDenied, rpctypes.ErrInvalidAuthToken, rpctypes.ErrInvalidAuthMgmt} {
		if errors.Is(err, known) || errors.Is(rpctypes.Error(err), known) {
			return true
		}
	}
	code := status.Code(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated
}
