import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

/** A server that knows nothing of SIGTERM. */
public class Server {
    public static void main(String[] args) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])), 128);
        server.setExecutor(Executors.newFixedThreadPool(32));
        server.createContext("/", exchange -> {
            exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, 3);
            exchange.getResponseBody().write("ok\n".getBytes());
            exchange.close();
        });
        server.start();
    }
}
