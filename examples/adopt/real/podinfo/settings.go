package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	web "github.com/stefanprodan/podinfo/pkg/api/http"
	"github.com/stefanprodan/podinfo/pkg/version"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// defaults are podinfo's settings by their names. A flag has the type of its value.
var defaults = map[string]any{
	"host": "", "port": "9898", "secure-port": "0", "port-metrics": 0, "grpc-port": 0, "grpc-service-name": "podinfo",
	"level": "info", "backend-url": []string{}, "http-client-timeout": 2 * time.Minute, "http-server-timeout": 30 * time.Second,
	"data-path": "/data", "config-path": "", "cert-path": "/data/cert", "config": "config.yaml",
	"ui-path": "./ui", "ui-logo": "", "ui-color": "#34577c", "ui-message": "greetings from podinfo v" + version.VERSION,
	"h2c": false, "random-delay": false, "random-delay-unit": "s", "random-delay-min": 0, "random-delay-max": 5, "random-error": false,
	"unhealthy": false, "unready": false, "cache-server": "", "otel-service-name": "", "jwt-secret": "", "health-addr": ":8081",
}

// settings fills cfg from flags, PODINFO_ variables, the file and defaults, in this order.
// podinfo's packages read some of them from viper itself.
func settings(cfg *web.Config) error {
	flags := pflag.NewFlagSet("podinfo", pflag.ContinueOnError)
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		switch value := defaults[name].(type) {
		case string:
			flags.String(name, value, "")
		case int:
			flags.Int(name, value, "")
		case bool:
			flags.Bool(name, value, "")
		case time.Duration:
			flags.Duration(name, value, "")
		case []string:
			flags.StringSlice(name, value, "")
		}
	}
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if err := viper.BindPFlags(flags); err != nil {
		return err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	viper.Set("hostname", hostname)
	viper.SetEnvPrefix("PODINFO")
	viper.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	viper.AutomaticEnv()
	if folder := viper.GetString("config-path"); folder != "" {
		name, _, _ := strings.Cut(viper.GetString("config"), ".")
		viper.SetConfigName(name)
		viper.AddConfigPath(folder)
		if err := viper.ReadInConfig(); err != nil {
			return err
		}
	}
	if err := viper.Unmarshal(cfg); err != nil {
		return err
	}
	if cfg.RandomDelayMax < cfg.RandomDelayMin || cfg.RandomDelayUnit != "s" && cfg.RandomDelayUnit != "ms" {
		return fmt.Errorf("a random delay from %d to %d %s is none", cfg.RandomDelayMin, cfg.RandomDelayMax, cfg.RandomDelayUnit)
	}
	return nil
}

// logger makes podinfo's log the global one of zap.
func logger(name string) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(name)
	if err != nil {
		return nil, err
	}
	cfg := zap.NewProductionConfig()
	cfg.Level = zap.NewAtomicLevelAt(level)
	log, err := cfg.Build()
	if err != nil {
		return nil, err
	}
	zap.ReplaceGlobals(log)
	return log, nil
}
