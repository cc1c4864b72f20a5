// Command ratelimit is Envoy's rate limit service (github.com/envoyproxy/ratelimit) as units of
// an App. It has the settings, the backends and the servers of the project's own main, which is
// src/service_cmd.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"time"

	"github.com/coocood/freecache"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/limiter"
	"github.com/envoyproxy/ratelimit/src/memcached"
	"github.com/envoyproxy/ratelimit/src/metrics"
	"github.com/envoyproxy/ratelimit/src/redis"
	"github.com/envoyproxy/ratelimit/src/server"
	ratelimit "github.com/envoyproxy/ratelimit/src/service"
	"github.com/envoyproxy/ratelimit/src/service_cmd/runner"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
	"github.com/envoyproxy/ratelimit/src/trace"
	"github.com/envoyproxy/ratelimit/src/utils"
	"github.com/libp2p/go-reuseport"
	"github.com/pleme-io/lifecycle-go"
	"github.com/sirupsen/logrus"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	lifecycle.Main(func() error { return run(settings.NewSettings()) })
}

func run(s settings.Settings) error {
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: os.Getenv("HEALTH_ADDR"), TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	level, err := logrus.ParseLevel(s.LogLevel)
	if err != nil {
		return err
	}
	logrus.SetLevel(level)
	if s.LogFormat == "json" {
		logrus.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano,
			FieldMap: logrus.FieldMap{logrus.FieldKeyTime: "@timestamp", logrus.FieldKeyMsg: "@message"}})
	}
	if s.TracingEnabled {
		tracer := trace.InitProductionTraceProvider(
			s.TracingExporterProtocol, s.TracingServiceName, s.TracingServiceNamespace, s.TracingServiceInstanceId, s.TracingSamplingRate)
		app.OnShutdown("traces", tracer.Shutdown)
	}
	starter := runner.NewRunner(s) // its Run is not called: the App runs the parts
	store := starter.GetStatsStore()
	app.OnShutdown("stats", func(context.Context) error { store.Flush(); return nil })
	manager := stats.NewStatManager(store, s)
	var local *freecache.Cache
	if s.LocalCacheSizeInBytes != 0 {
		local = freecache.NewCache(s.LocalCacheSizeInBytes)
	}
	reporter := metrics.NewServerReporter(store.ScopeWithTags("ratelimit_server", s.ExtraTags))
	srv := server.NewServer(s, "ratelimit", manager, local, settings.GrpcUnaryInterceptor(reporter.UnaryServerInterceptor()))
	app.OnShutdown("limits", func(context.Context) error { srv.Provider().Stop(); return nil })
	cache, closer, err := backend(s, srv, local, manager)
	if err != nil {
		return err
	}
	app.OnShutdown("backend", func(context.Context) error { return closer.Close() })
	service := ratelimit.NewService(cache, srv.Provider(), manager, srv.HealthChecker(), utils.NewTimeSourceImpl(),
		s.GlobalShadowMode, s.ForceStartWithoutInitialConfig, s.HealthyWithAtLeastOneConfigLoaded)
	pb.RegisterRateLimitServiceServer(srv.GrpcServer(), service)

	network, address := "tcp", net.JoinHostPort(s.GrpcHost, strconv.Itoa(s.GrpcPort))
	if s.GrpcUds != "" {
		network, address = "unix", s.GrpcUds
	}
	calls, err := reuseport.Listen(network, address)
	if err != nil {
		return err
	}
	web, err := reuseport.Listen("tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)))
	if err != nil {
		return err
	}
	app.GRPC("grpc", srv.GrpcServer(), calls, srv.HealthChecker().Server()).
		Serve("http", &http.Server{Handler: routes(srv, service)}, lifecycle.WithListener(web)).
		Serve("debug", &http.Server{Addr: net.JoinHostPort(s.DebugHost, strconv.Itoa(s.DebugPort)), Handler: debug(service)}).
		Probe("ratelimit", lifecycle.ProbeFunc(func(ctx context.Context) error {
			res, err := srv.HealthChecker().Server().Check(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"})
			if err == nil && res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				err = fmt.Errorf("the service says %v", res.GetStatus())
			}
			return err
		}))
	return app.Run(context.Background())
}

func backend(
	s settings.Settings, srv server.Server, local *freecache.Cache, manager stats.Manager,
) (limiter.RateLimitCache, io.Closer, error) {
	clock, random := utils.NewTimeSourceImpl(), rand.New(utils.NewLockedSource(time.Now().Unix()))
	switch s.BackendType {
	case "redis", "":
		cache, closer := redis.NewRateLimiterCacheImplFromSettings(s, local, srv, clock, random, s.ExpirationJitterMaxSeconds, manager)
		return cache, closer, nil
	case "memcache":
		return memcached.NewRateLimitCacheImplFromSettings(s, clock, random, local, srv.Scope(), manager), new(utils.MultiCloser), nil
	}
	return nil, nil, fmt.Errorf("there is no backend %q", s.BackendType)
}

func routes(srv server.Server, service pb.RateLimitServiceServer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/json", server.NewJsonHandler(service))
	mux.Handle("/healthcheck", srv.HealthChecker())
	return mux
}

func debug(service ratelimit.RateLimitServiceServer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/rlconfig", func(w http.ResponseWriter, _ *http.Request) {
		if limits, _, _ := service.GetCurrentConfig(); limits != nil {
			_, _ = io.WriteString(w, limits.Dump())
		}
	})
	return mux
}
