package weir;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, without the processes that it starts and with a rename that keeps its word.
 *
 * Where Hadoop's native library is not there, and PySpark does not bring it, Hadoop runs `chmod` and
 * `readlink` for nearly every file that it makes or renames: some ninety processes for a batch of a small
 * stateful query, half of the time of that batch. Java can do both by itself.
 *
 * Everything else is Hadoop's own: paths, checksums, permissions, what is refused. Compiled by Janino,
 * which Spark brings, so that no JDK is needed; see `local_files.py`.
 */
public class LocalFiles extends LocalFileSystem {

    public LocalFiles() {
        super(new Raw());
    }

    /** What LocalFileSystem and the file contexts of a process stand on. */
    public static class Raw extends RawLocalFileSystem {

        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            if (permission.getStickyBit()) {
                super.setPermission(path, permission);
                return;
            }
            String letters = permission.getUserAction().SYMBOL
                + permission.getGroupAction().SYMBOL + permission.getOtherAction().SYMBOL;
            try {
                Files.setPosixFilePermissions(
                    this.pathToFile(path).toPath(), PosixFilePermissions.fromString(letters));
            } catch (UnsupportedOperationException notPosix) {
                super.setPermission(path, permission);
            }
        }

        @Override
        public FileStatus getFileLinkStatus(Path path) throws IOException {
            if (Files.isSymbolicLink(this.pathToFile(path).toPath())) {
                return super.getFileLinkStatus(path);
            }
            return this.getFileStatus(path);
        }
    }

    /** The same for Hadoop's newer interface, through which Spark writes its logs and its state. */
    public static class Context extends ChecksumFs {

        public Context(URI uri, Configuration configuration) throws IOException, URISyntaxException {
            super(new Linking(configuration));
        }
    }

    static class Linking extends DelegateToFileSystem {

        Linking(Configuration configuration) throws IOException, URISyntaxException {
            super(FsConstants.LOCAL_FS_URI, new Raw(), configuration, "file", false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1;
        }

        @Override
        public boolean isValidName(String name) {
            return true;
        }

        /**
         * A file that must not replace another is linked to its new name, which only one of two writers
         * can do. Hadoop looks and then renames: both may have looked before one of them renames.
         */
        @Override
        public void renameInternal(Path source, Path target, boolean overwrite) throws IOException {
            if (overwrite || !this.linked(source, target)) {
                super.renameInternal(source, target, overwrite);
            }
        }

        private boolean linked(Path source, Path target) throws IOException {
            java.nio.file.Path from = new File(source.toUri().getPath()).toPath();
            java.nio.file.Path to = new File(target.toUri().getPath()).toPath();
            if (!Files.isRegularFile(from, new LinkOption[] {LinkOption.NOFOLLOW_LINKS})) {
                return false;
            }
            try {
                Files.createLink(to, from);
            } catch (java.nio.file.FileAlreadyExistsException there) {
                // Over a network the first answer may be lost, and the link that is there be our own.
                if (!Files.isSameFile(to, from)) {
                    throw new FileAlreadyExistsException("rename destination " + target + " already exists.");
                }
            } catch (FileSystemException noLinks) {
                return false;
            } catch (UnsupportedOperationException noLinks) {
                return false;
            }
            Files.deleteIfExists(from);
            return true;
        }
    }
}
