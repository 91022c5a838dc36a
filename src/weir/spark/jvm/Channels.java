package weir;

/** The format of a channel's stream: segments, which are Parquet files. */
public class Channels extends PlannedProvider {

    public Channels() {
        super("channel", new org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat());
    }
}
