package weir;

import java.io.FileNotFoundException;
import java.io.IOException;

/** A file of a batch is gone, or can't be looked up; its path follows the first colon of the message. */
public class UnreadableFileException extends RuntimeException {

    UnreadableFileException(String path, IOException cause) {
        super((cause instanceof FileNotFoundException ? "a file is gone: " : "a file can't be read: ") + path, cause);
    }
}
