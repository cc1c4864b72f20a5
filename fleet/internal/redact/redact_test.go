package redact

import (
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScrub(t *testing.T) {
	for text, want := range map[string]string{
		`password=hunter2 user=ada`:                                      `password=[removed] user=ada`,
		`{"api_key": "a\"b", "name": "x"}`:                               `{"api_key": "[removed]", "name": "x"}`,
		`DB_PASSWORD="a b", retry`:                                       `DB_PASSWORD="[removed]", retry`,
		`{\"token\":\"abc\"} at 3`:                                       `{\"token\":[removed]\"} at 3`,
		`secret: 'a b' x`:                                                `secret: '[removed]' x`,
		`postgres://ada:hunter2@db:5432/x`:                               `postgres://[removed]@db:5432/x`,
		`Authorization: Bearer abcdefgh.ijk`:                             `Authorization: Bearer [removed]`,
		`got eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2ln here`:                    `got [removed: a token] here`,
		"-----BEGIN PRIVATE KEY-----\nMC4\n-----END PRIVATE KEY-----\nx": "[removed: a private key]\nx",
		`[{name: "a", tokens: ["x]1", y]}] rest`:                         `[{name: "a", tokens: [removed]}] rest`,
		`{credentials: {alice: "x", bob: {p: 'y}'}}, n: 1}`:              `{credentials: [removed], n: 1}`,
		"tokens: [a\nb] next":                                            "tokens: [removed]\nb] next",
		`"tokens": [], "secrets": {}, "token": [removed]`:                `"tokens": [], "secrets": {}, "token": [removed]`,
		`Token:[abc def] Accept:[x]`:                                     `Token:[removed] Accept:[x]`,
		`AKIAIOSFODNN7EXAMPLE`:                                           `[removed: an access key]`,
		`the token is missing, want 20 characters`:                       `the token is missing, want 20 characters`,
		`unit poller has failed: connection refused`:                     `unit poller has failed: connection refused`,
		`https://operator.example.com/ui/?contains=a@b`:                  `https://operator.example.com/ui/?contains=a@b`,
	} {
		if got := Text(text); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", text, got, want)
		}
	}
}

// Real texts of logs and errors in which a secret got through.
func TestSecretsOfEveryKind(t *testing.T) {
	const seed = "SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY" // of the NATS documentation
	for _, text := range []string{
		"nats: cannot read the seed " + seed,
		"-----BEGIN USER NKEY SEED-----\n" + seed + "\n------END USER NKEY SEED------",
		"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,ABC\n\nhunter2\n-----END RSA PRIVATE KEY-----",
		"10:00 -----BEGIN EC PRIVATE KEY-----\n10:01 hunter2\n10:02 -----END EC PRIVATE KEY-----",
		"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\nhunter2\n-----END PGP PRIVATE KEY BLOCK-----",
		"postgres://ada:hunt@hunter2@db/x", "dial amqp://ada:a/hunter2@mq:5672: refused", "redis://:hunter2@cache:6379/0", "nats://hunter2@10.0.0.1:4222",
		"exec: psql --password hunter2 --host db", "run [tool --api-key 'hunter2 x' --verbose]", "started with --token=hunter2",
		`open "app:hunter2@tcp(db:3306)/shop": refused`, "app:hunt@hunter2@unix(/run/db.sock)/x", "session.encryption_key: hunter2", "jwt_signing_key=hunter2",
		"DB_PASS=hunter2", "smtp.pass: hunter2", "MYSQL_PWD=hunter2", "session_id=hunter2",
		"GET /x map[Cookie:[a=hunter2; b=hunter2] Accept:[*/*]]", "> Cookie: theme=dark; sid=hunter2", "< Set-Cookie: sid=hunter2; Path=/", `"cookie":"sid=hunter2"`,
		`Authorization: Digest username="ada", response="hunter2"`, "Authorization: ApiKey hunter2", "Proxy-Authorization: Negotiate hunter2",
		"https://b.example.com/x?se=2030&sig=hunter2&sp=r", "https://s3.example.com/x?X-Amz-Signature=hunter2",
		"ghp_hunter2hunter2hunter2hunter2hunter2", "glpat-hunter2hunter2hunter2", "xoxb-1234567890-hunter2", "sk_live_hunter2hunter2", "AIzahunter2hunter2hunter2hunter2hunter2",
	} {
		if got := Text(text); strings.Contains(got, "hunter2") || strings.Contains(got, "SUAMK") {
			t.Errorf("%s\nbecomes %s", text, got)
		}
	}
	clean, err := JSON([]byte(`{"password":12345678,"tokens":["hunter2",{"a":"hunter2"}],"secret":{"db":"hunter2","n":12345678},"x":{"redis://:hunter2@cache":1},"next_page_token":"","has_password":true}`))
	if err != nil || strings.Contains(string(clean), "hunter2") || strings.Contains(string(clean), "12345678") || !strings.Contains(string(clean), `"next_page_token": ""`) || !strings.Contains(string(clean), `"has_password": true`) {
		t.Errorf("%s, %v", clean, err)
	}
	for _, text := range []string{ // what support needs stays
		"http://10.1.2.3:8090/ui/?contains=a@b", "3 tests passed: 2 skipped", "bypass: on", "sha256:0a1b2c", "the unit design: done", "mail from ada@example.com to bob@example.com",
		"dial tcp 10.0.0.1:5432: connect: connection refused", "lifecyclectl describe web.1", "lease for a token", "SERVICE=web",
	} {
		if got := Text(text); got != text {
			t.Errorf("%s\nbecomes %s", text, got)
		}
	}
}

// What is taken out of JSON leaves JSON without the secret.
func FuzzScrub(f *testing.F) {
	f.Add("password", `x "token": "b\" \\`)
	f.Add(`\"`, `secret='`)
	f.Fuzz(func(t *testing.T, a, b string) {
		text, err := json.Marshal(map[string]any{a: b, "list": []any{b + a, map[string]string{"api_key": "hunter2"}}, "cause": a + " password=hunter2 " + b})
		if err != nil {
			t.Fatal(err) // strings can always be marshalled
		}
		clean, err := JSON(text)
		if err != nil || !json.Valid(clean) || !strings.Contains(a+b, "hunter2") && strings.Contains(string(clean), "hunter2") {
			t.Errorf("%s\nbecomes %s, %v", text, clean, err)
		}
	})
}

func TestNamed(t *testing.T) {
	for key, want := range map[string]bool{
		"db.password": true, "lifecycle.admin_token": true, "API_KEY": true, "aws.secret.id": true,
		"lifecycle.admin_token_file": false, "addr": false, "key": false, "poll": false,
	} {
		if got := Named(key); got != want {
			t.Errorf("%s: %v", key, got)
		}
	}
}
