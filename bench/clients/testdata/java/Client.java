import java.io.InputStream;
import java.io.PrintWriter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** usage: java Client.java CLIENT URL WORKERS SECONDS PAUSE_MS, with CLIENT h1 or h2. */
public class Client {
    static long began;
    static final Map<String, List<Long>> at = new TreeMap<>();
    static int sent, open;

    public static void main(String[] args) throws Exception {
        URI uri = URI.create(args[1]);
        int workers = Integer.parseInt(args[2]);
        long seconds = (long) Double.parseDouble(args[3]);
        int pause = Integer.parseInt(args[4]);
        HttpClient client = HttpClient.newBuilder()
            .version(args[0].equals("h2") ? HttpClient.Version.HTTP_2 : HttpClient.Version.HTTP_1_1)
            .sslContext(trust(System.getenv("SSL_CERT_FILE")))
            .build();
        HttpRequest get = HttpRequest.newBuilder(uri).build();
        HttpRequest post = HttpRequest.newBuilder(uri).POST(HttpRequest.BodyPublishers.ofString("x".repeat(100))).build();
        List<Thread> threads = new ArrayList<>();
        began = System.nanoTime();
        System.out.println("began");
        for (int i = 0; i < workers; i++) {
            boolean odd = i % 2 == 1;
            Thread thread = new Thread(() -> work(client, get, post, odd, seconds * 1000, pause));
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join(Math.max(1, seconds * 1000 + 8000 - elapsed()));
        }
        synchronized (at) {
            for (; open > 0; open--) {
                fail("no answer");
            }
            print();
        }
        System.exit(0);
    }

    static SSLContext trust(String file) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream in = Files.newInputStream(Path.of(file))) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }

    static long elapsed() {
        return (System.nanoTime() - began) / 1_000_000;
    }

    static void work(HttpClient client, HttpRequest get, HttpRequest post, boolean posts, long end, int pause) {
        try {
            for (; elapsed() < end; posts = !posts) {
                synchronized (at) {
                    sent++;
                    open++;
                }
                String error = "";
                try {
                    HttpResponse<String> res = client.send(posts ? post : get, HttpResponse.BodyHandlers.ofString());
                    if (res.statusCode() != 200) {
                        error = "status " + res.statusCode();
                    }
                } catch (java.io.IOException e) {
                    error = describe(e);
                }
                synchronized (at) {
                    open--;
                    if (!error.isEmpty()) {
                        fail(error);
                    }
                }
                Thread.sleep(ThreadLocalRandom.current().nextInt(pause + 1) + (error.isEmpty() ? 0 : 20));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    static String describe(Throwable e) {
        List<String> parts = new ArrayList<>();
        for (Throwable t = e; t != null && parts.size() < 4; t = t.getCause()) {
            parts.add(t.getClass().getSimpleName() + " " + t.getMessage());
        }
        return String.join(": ", parts).replaceAll("127\\.0\\.0\\.1[:/]\\d+", "ADDR").replaceAll("\\d{4,}", "N").replace("\"", "'").replace("\\", "/");
    }

    static void fail(String text) {
        synchronized (at) {
            at.computeIfAbsent(text, t -> new ArrayList<>()).add(elapsed());
        }
    }

    static void print() {
        int failed = at.values().stream().mapToInt(List::size).sum();
        String errors = at.entrySet().stream().map(e -> "\"" + e.getKey() + "\": " + e.getValue().size()).collect(Collectors.joining(", "));
        String times = at.entrySet().stream().map(e -> "\"" + e.getKey() + "\": " + e.getValue()).collect(Collectors.joining(", "));
        PrintWriter out = new PrintWriter(System.out);
        out.printf("{\"sent\": %d, \"failed\": %d, \"errors\": {%s}, \"at\": {%s}, \"note\": \"Java %s\"}%n",
            sent, failed, errors, times, System.getProperty("java.version"));
        out.flush();
    }
}
