// SPDX-License-Identifier: MIT
// Exchange server PORT: sends back what comes, by one thread, a selector and direct buffers.
// Exchange client PORT: sends bodies of several sizes over blocking sockets and channels at once, heap and direct buffers, and
// compares what comes back; prints what it moved as JSON. It knows nothing of zc.
// Exchange client PORT nulls: meanwhile another thread follows null pointers, which the JVM notices by SIGSEGV.
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class Exchange {
	static final int[] SIZES = { 1, 100, 4096, 65536, 65537, 1_000_000, 5_000_000 };
	static final int BUFFER_BYTES = 256 * 1024;

	static volatile boolean done;
	static volatile int[] nothing;

	public static void main(String[] arguments) throws Exception {
		String host = System.getenv().getOrDefault("APPS_ADDRESS", "127.0.0.1");
		InetSocketAddress address = new InetSocketAddress(host, Integer.parseInt(arguments[1]));

		if (arguments[0].equals("server"))
			serve(address);
		else
			exchange(address, arguments.length > 2);
	}

	static long followNulls() {
		long caught = 0;

		while (!done) {
			try {
				nothing[0]++;
			} catch (NullPointerException expected) {
				caught++;
			}
		}
		return caught;
	}

	static void serve(InetSocketAddress address) throws Exception {
		Selector selector = Selector.open();
		ServerSocketChannel listener = ServerSocketChannel.open().bind(address);

		listener.configureBlocking(false);
		listener.register(selector, SelectionKey.OP_ACCEPT);
		while (true) {
			selector.select();
			for (Iterator<SelectionKey> ready = selector.selectedKeys().iterator(); ready.hasNext();) {
				SelectionKey key = ready.next();

				ready.remove();
				if (key.isAcceptable())
					admit(listener.accept(), selector);
				else
					echo(key);
			}
		}
	}

	static void admit(SocketChannel connection, Selector selector) throws Exception {
		connection.configureBlocking(false);
		connection.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(BUFFER_BYTES));
	}

	static void echo(SelectionKey key) throws Exception {
		SocketChannel connection = (SocketChannel) key.channel();
		ByteBuffer buffer = (ByteBuffer) key.attachment();

		if (key.isReadable()) {
			buffer.clear();
			if (connection.read(buffer) < 0) {
				connection.close();
				return;
			}
			buffer.flip();
		}
		connection.write(buffer);
		key.interestOps(buffer.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
	}

	static void exchange(InetSocketAddress address, boolean withNulls) throws Exception {
		ExecutorService threads = Executors.newCachedThreadPool();
		List<Future<Long>> parts = new ArrayList<>();
		Future<Long> nulls = withNulls ? threads.submit(Exchange::followNulls) : null;
		long sent = 0;

		for (int number = 0; number < 2; number++) {
			int seed = number;

			parts.add(threads.submit(() -> bySocket(address, seed, threads)));
			parts.add(threads.submit(() -> byChannel(address, seed, threads)));
		}
		for (Future<Long> part : parts)
			sent += part.get();
		done = true;
		threads.shutdown();
		System.out.printf("{\"sent\": %d, \"received\": %d, \"verified\": %d, \"nulls\": %d}%n", sent, sent,
			parts.size() * SIZES.length, nulls == null ? 0 : nulls.get());
	}

	static byte[] body(int size, int seed) {
		byte[] body = new byte[size];

		new Random(size + seed).nextBytes(body);
		return body;
	}

	static void same(byte[] got, byte[] expected) {
		int at = Arrays.mismatch(got, expected);

		if (at >= 0)
			throw new IllegalStateException("byte " + at + " of " + expected.length + " differs");
	}

	static long bySocket(InetSocketAddress address, int seed, ExecutorService threads) throws Exception {
		long sent = 0;

		try (Socket socket = new Socket(address.getAddress(), address.getPort())) {
			InputStream in = socket.getInputStream();
			OutputStream out = socket.getOutputStream();

			socket.setTcpNoDelay(true);
			for (int size : SIZES) {
				byte[] body = body(size, seed);
				Future<Object> writing = threads.submit((Callable<Object>) () -> {
					out.write(body);
					return null;
				});

				same(in.readNBytes(size), body);
				writing.get();
				sent += size;
			}
		}
		return sent;
	}

	static long byChannel(InetSocketAddress address, int seed, ExecutorService threads) throws Exception {
		long sent = 0;

		try (SocketChannel channel = SocketChannel.open(address)) {
			for (int size : SIZES) {
				byte[] body = body(size, seed);
				ByteBuffer out = ByteBuffer.allocateDirect(size), in = ByteBuffer.allocate(size);
				Future<Object> writing;

				out.put(body).flip();
				writing = threads.submit((Callable<Object>) () -> {
					while (out.hasRemaining())
						channel.write(out);
					return null;
				});
				while (in.hasRemaining() && channel.read(in) >= 0)
					;
				same(in.array(), body);
				writing.get();
				sent += size;
			}
		}
		return sent;
	}
}
