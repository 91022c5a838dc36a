package weir;

import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.streaming.Source;
import org.apache.spark.sql.sources.StreamSourceProvider;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;

/** What Spark makes such a stream with, from the options and the schema that Python has given. */
public abstract class PlannedProvider implements StreamSourceProvider {

    private static volatile Planner planner;

    private final String kind;
    private final FileFormat format;

    PlannedProvider(String kind, FileFormat format) {
        this.kind = kind;
        this.format = format;
    }

    /** The planner of the driver's Python process, for every stream that is opened from now on. */
    public static void serve(Planner given) {
        planner = given;
    }

    @Override
    public Tuple2<String, StructType> sourceSchema(
        SQLContext context,
        Option<StructType> schema,
        String provider,
        scala.collection.immutable.Map<String, String> options) {
        return new Tuple2<String, StructType>(this.kind, schema.get());
    }

    @Override
    public Source createSource(
        SQLContext context,
        String metadata,
        Option<StructType> schema,
        String provider,
        scala.collection.immutable.Map<String, String> options) {
        Map<String, String> given = new TreeMap<String, String>(String.CASE_INSENSITIVE_ORDER);
        scala.collection.Iterator<Tuple2<String, String>> each = options.iterator();
        while (each.hasNext()) {
            Tuple2<String, String> option = (Tuple2<String, String>) each.next();
            given.put((String) option._1(), (String) option._2());
        }
        String query = metadata.substring(0, metadata.lastIndexOf("/sources/"));
        return new PlannedSource(
            context.sparkSession(), this.kind, this.format, (StructType) schema.get(), given, query, planner);
    }
}
