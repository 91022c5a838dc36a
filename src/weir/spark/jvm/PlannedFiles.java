package weir;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

/** The files of one batch. Those of unknown size are looked up, each by its name, when the batch is read. */
class PlannedFiles implements FileIndex {

    private final SparkSession session;
    private final Path[] paths;
    private final long[] sizes;
    private final long bytes;
    private final PlanningException failed;

    PlannedFiles(SparkSession session, JsonNode batch) {
        this.session = session;
        JsonNode files = (JsonNode) batch.get("files");
        this.paths = new Path[files.size()];
        this.sizes = new long[files.size()];
        for (int number = 0; number < this.paths.length; number++) {
            JsonNode file = (JsonNode) files.get(number);
            this.paths[number] = new Path(((JsonNode) file.get("path")).asText());
            this.sizes[number] = file.hasNonNull("size") ? ((JsonNode) file.get("size")).asLong() : -1;
        }
        this.bytes = ((JsonNode) batch.get("bytes")).asLong();
        this.failed = null;
    }

    /** The files of a batch that could not be planned; whoever reads it hears why. */
    PlannedFiles(PlanningException failed) {
        this.session = null;
        this.paths = new Path[0];
        this.sizes = new long[0];
        this.bytes = 0;
        this.failed = failed;
    }

    @Override
    public Seq<PartitionDirectory> listFiles(Seq<Expression> partitions, Seq<Expression> data) {
        if (this.failed != null) {
            throw this.failed;
        }
        Configuration hadoop = this.session.sessionState().newHadoopConf();
        FileStatus[] found = new FileStatus[this.paths.length];
        for (int number = 0; number < found.length; number++) {
            Path path = this.paths[number];
            found[number] = this.sizes[number] < 0
                ? this.lookedUp(path, hadoop)
                : new FileStatus(this.sizes[number], false, 1, this.sizes[number], 0, path);
        }
        List<PartitionDirectory> all = new ArrayList<PartitionDirectory>();
        all.add(
            org.apache.spark.sql.execution.datasources.PartitionDirectory$.MODULE$.apply(
                new GenericInternalRow(new Object[0]), found));
        return scala.jdk.javaapi.CollectionConverters.asScala(all).toSeq();
    }

    private FileStatus lookedUp(Path path, Configuration hadoop) {
        try {
            FileStatus status = path.getFileSystem(hadoop).getFileStatus(path);
            if (status.getLen() == 0) { // Spark passes over an empty file, and its rows would be missing
                throw new IOException("it is empty");
            }
            return status;
        } catch (IOException wrong) {
            throw new UnreadableFileException(path.toString(), wrong);
        }
    }

    @Override
    public Seq<Path> rootPaths() {
        return scala.jdk.javaapi.CollectionConverters.asScala(Arrays.asList(this.paths)).toSeq();
    }

    @Override
    public String[] inputFiles() {
        String[] all = new String[this.paths.length];
        for (int number = 0; number < all.length; number++) {
            all[number] = this.paths[number].toUri().toString();
        }
        return all;
    }

    @Override
    public void refresh() {
    }

    @Override
    public long sizeInBytes() {
        return this.bytes;
    }

    @Override
    public StructType partitionSchema() {
        return new StructType();
    }
}
