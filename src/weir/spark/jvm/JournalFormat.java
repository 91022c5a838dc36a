package weir;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.SerializableConfiguration;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;

/** How a task reads an entry of a journal: a row for each line of its text, and the time at which it came. */
public class JournalFormat implements FileFormat, Serializable {

    @Override
    public Option<StructType> inferSchema(
        SparkSession session, Map<String, String> options, Seq<FileStatus> files) {
        throw new UnsupportedOperationException("a journal's schema is given");
    }

    @Override
    public OutputWriterFactory prepareWrite(
        SparkSession session, Job job, Map<String, String> options, StructType schema) {
        throw new UnsupportedOperationException("a journal is written by its receiver");
    }

    @Override
    public boolean isSplitable(SparkSession session, Map<String, String> options, Path path) {
        return false;
    }

    @Override
    public scala.Function1<PartitionedFile, scala.collection.Iterator<InternalRow>> buildReader(
        SparkSession session,
        StructType data,
        StructType partitions,
        StructType required,
        Seq<Filter> filters,
        Map<String, String> options,
        Configuration hadoop) {
        Broadcast<SerializableConfiguration> shared = session.sparkContext().broadcast(
            new SerializableConfiguration(hadoop),
            scala.reflect.ClassTag$.MODULE$.apply(SerializableConfiguration.class));
        return new Reader(required.fieldNames(), shared);
    }

    @Override
    public String toString() {
        return "journal";
    }

    /** What Spark sends to its tasks. */
    static class Reader extends AbstractFunction1<PartitionedFile, scala.collection.Iterator<InternalRow>>
        implements Serializable {

        private static final ObjectMapper JSON = new ObjectMapper();

        private final String[] columns;
        private final Broadcast<SerializableConfiguration> hadoop;

        Reader(String[] columns, Broadcast<SerializableConfiguration> hadoop) {
            this.columns = columns;
            this.hadoop = hadoop;
        }

        public Object apply(Object file) {
            Path path = ((PartitionedFile) file).toPath();
            try {
                Configuration configuration = ((SerializableConfiguration) this.hadoop.value()).value();
                InputStream stream = path.getFileSystem(configuration).open(path);
                try {
                    JsonNode entry = JSON.readTree(stream);
                    // An entry of an earlier weir has no time, and gets the epoch: null would pass no watermark.
                    JsonNode at = entry.get("at");
                    double seconds = at == null ? 0.0 : at.asDouble();
                    Lines lines = new Lines(
                        ((JsonNode) entry.get("text")).asText(),
                        Long.valueOf((long) Math.rint(seconds * 1000000)),
                        this.columns);
                    return scala.jdk.javaapi.CollectionConverters.asScala(lines);
                } finally {
                    stream.close();
                }
            } catch (IOException failed) {
                throw new UncheckedIOException(failed);
            }
        }
    }

    static class Lines implements Iterator<InternalRow> {

        private final String text;
        private final Long micros;
        private final String[] columns;
        private int next = 0;

        Lines(String text, Long micros, String[] columns) {
            this.text = text;
            this.micros = micros;
            this.columns = columns;
        }

        @Override
        public boolean hasNext() {
            return this.next <= this.text.length();
        }

        @Override
        public InternalRow next() {
            if (!this.hasNext()) {
                throw new NoSuchElementException();
            }
            int end = this.text.indexOf('\n', this.next);
            end = end < 0 ? this.text.length() : end;
            Object[] values = new Object[this.columns.length];
            for (int number = 0; number < values.length; number++) {
                values[number] = this.columns[number].equals("value")
                    ? (Object) UTF8String.fromString(this.text.substring(this.next, end))
                    : (Object) this.micros;
            }
            this.next = end + 1;
            return new GenericInternalRow(values);
        }

        @Override
        public void remove() {
            throw new UnsupportedOperationException();
        }
    }
}
