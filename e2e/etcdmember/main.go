// Command etcdmember runs one member of an etcd cluster, for tests and for the
// fleet's demo: etcd's own server, embedded, with the few settings that those need.
// A production fleet runs etcd's release.
//
// It binds its ports itself and writes one line of JSON to its standard output once
// it listens, and another, {"ready":true}, once it serves clients, for which a
// cluster needs a majority. It ends at SIGTERM, and when its standard input does, so
// that it is not left behind by whoever started it.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

// Listening is the first line.
type Listening struct {
	Name   string `json:"name"`
	ID     string `json:"id"` // as etcd writes it: hexadecimal
	Client string `json:"client"`
	Peer   string `json:"peer"` // where it listens for the other members
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "etcdmember:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	cfg := embed.NewConfig()
	cfg.LogLevel = "fatal"
	cfg.LogOutputs = []string{"stderr"}
	flags := flag.NewFlagSet("etcdmember", flag.ExitOnError)
	flags.StringVar(&cfg.Name, "name", "etcd", "the member's name")
	flags.StringVar(&cfg.Dir, "dir", "", "where it keeps its data; a member that is started again with it goes on")
	listenClient := flags.String("client", "http://127.0.0.1:0", "URL to listen at for clients; https with -cert")
	listenPeer := flags.String("peer", "http://127.0.0.1:0", "URL to listen at for other members")
	peer := flags.String("advertise-peer", "", "URL at which other members reach it; else that of -peer")
	flags.StringVar(&cfg.InitialCluster, "cluster", "", "name=URL of all members, with commas between; else it is alone")
	flags.UintVar(&cfg.TickMs, "heartbeat", cfg.TickMs, "ms between a leader's heartbeats")
	flags.UintVar(&cfg.ElectionMs, "election", cfg.ElectionMs, "ms without them until another is elected")
	flags.BoolVar(&cfg.UnsafeNoFsync, "unsafe-no-fsync", false, "don't wait for the disk; what was written may be lost with the machine")
	flags.UintVar(&cfg.AuthTokenTTL, "token-ttl", cfg.AuthTokenTTL, "seconds until a token that is not used expires")
	flags.UintVar(&cfg.BcryptCost, "bcrypt-cost", cfg.BcryptCost, "what a login costs, as a power of 2")
	tls := &cfg.ClientTLSInfo
	flags.StringVar(&tls.CertFile, "cert", "", "the server's certificate for clients")
	flags.StringVar(&tls.KeyFile, "key", "", "its key")
	flags.StringVar(&tls.TrustedCAFile, "ca", "", "whose certificates clients must have; absent: they need none")
	flags.StringVar(&cfg.LogLevel, "log", cfg.LogLevel, "least level that is logged, to standard error")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if cfg.Dir == "" || flags.NArg() > 0 {
		return errors.New("-dir is needed, and no argument is")
	}
	tls.ClientCertAuth = tls.TrustedCAFile != ""
	if *peer == "" {
		*peer = *listenPeer
	}
	if cfg.InitialCluster == "" {
		cfg.InitialCluster = cfg.Name + "=" + *peer
	}
	for _, u := range []struct {
		url string
		to  []*[]url.URL
	}{
		{*listenClient, []*[]url.URL{&cfg.ListenClientUrls, &cfg.AdvertiseClientUrls}},
		{*listenPeer, []*[]url.URL{&cfg.ListenPeerUrls}},
		{*peer, []*[]url.URL{&cfg.AdvertisePeerUrls}},
	} {
		parsed, err := url.Parse(u.url)
		if err != nil {
			return err
		}
		for _, to := range u.to {
			*to = []url.URL{*parsed}
		}
	}

	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end <- syscall.SIGTERM
	}()
	member, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer member.Close()
	say := json.NewEncoder(os.Stdout)
	if err := say.Encode(Listening{
		Name: cfg.Name, ID: member.Server.MemberID().String(),
		Client: cfg.ListenClientUrls[0].Scheme + "://" + member.Clients[0].Addr().String(),
		Peer:   cfg.ListenPeerUrls[0].Scheme + "://" + member.Peers[0].Addr().String(),
	}); err != nil {
		return err
	}
	select {
	case <-member.Server.ReadyNotify():
		if err := say.Encode(map[string]bool{"ready": true}); err != nil {
			return err
		}
	case err := <-member.Err():
		return err
	case <-end:
		return nil
	}
	select {
	case err := <-member.Err():
		return err
	case <-member.Server.StopNotify():
		return errors.New("the server has stopped")
	case <-end:
		return nil
	}
}
